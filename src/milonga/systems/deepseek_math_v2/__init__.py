"""DeepSeekMath-V2 (arXiv 2511.22570): a proof verifier, its meta-verifier, and a generator that verifies itself."""
