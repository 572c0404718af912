"""Export traces and metrics by OTLP. The plugin is in `hookmq_otel.plugin`."""
