"""Store HookMQ's sessions, queues and retained messages in SQLite. The plugin class is in `hookmq_storage.plugin`."""
