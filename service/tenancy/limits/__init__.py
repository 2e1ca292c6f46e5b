"""What a tenant may use in a minute, in a day and at once: rules, counters in memory or in Redis, accounts."""
