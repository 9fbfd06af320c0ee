"""Feed handlers that publish news and filing events to Kafka."""
