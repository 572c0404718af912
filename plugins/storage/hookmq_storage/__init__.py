"""HookMQ's state on disk: sessions, queues and retained messages in SQLite. The plugin is `hookmq_storage.plugin`."""
