"""Using what was trained: items in, answers and verdicts out; exporting; serving. The command line and the service share it."""
