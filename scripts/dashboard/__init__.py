"""The Grafana dashboard as code: `python -m scripts.dashboard` writes it."""
