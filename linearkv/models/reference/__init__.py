"""The reference model: weights, configuration and tokenizer, installed with the package."""
