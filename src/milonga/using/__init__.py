"""Use trained models: solve and verify items, export, serve. Shared by the command line and the HTTP service."""
