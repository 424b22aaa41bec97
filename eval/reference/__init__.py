"""Recipe of the reference model: synthetic data, tokenizer, training and its held-out score.

`generator` makes multi-document questions in ordinary English; `tokenizer` trains the byte-level BPE; `model` is a fast
trainable twin of transformers' `Qwen3_5ForCausalLM`; `train` runs everything with one command. The evaluation reuses
`generator.HeldOut`, whose names, values and sentence templates never occur in training.
"""
