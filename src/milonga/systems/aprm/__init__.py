"""APRM (arXiv 2511.22888): a corruptor of steps against a process reward model."""
