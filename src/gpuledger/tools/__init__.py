"""What runs beside Prometheus or in a terminal. The exporter never imports it."""
