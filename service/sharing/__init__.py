"""What replicas share in Redis or Valkey: who runs which generation, and the events of those that are retained."""
