"""Export traces and metrics over OTLP. The plugin is in `hookmq_otel.plugin`."""
