"""The models that this server serves: what each is, and where it is declared."""
