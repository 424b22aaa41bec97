"""Bytes of one chunk's state by model and chunk length, and the bandwidth at which restoring it beats prefilling it.

    python -m linearkv.eval.sizes [--tokens-per-second N]

Shapes are those of the published Qwen3-Next and Qwen3.5 configurations. A state is transition and update of every GDN
layer, whatever the chunk's length, and keys and values of every attention layer per token. Restoring beats prefilling
where the tier delivers a chunk's bytes in less time than the model prefills its tokens:
bandwidth > bytes / (tokens / tokens per second).
"""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """GDN layers, their value heads and head dim (keys and values alike); attention layers, KV heads and head dim."""

    name: str
    gdn_layers: int
    value_heads: int
    head_dim: int
    attention_layers: int
    kv_heads: int
    attention_head_dim: int

    def state_bytes(self, bytes_per_element: int = 2) -> int:
        """Transition and update, of any chunk."""
        return self.gdn_layers * self.value_heads * 2 * self.head_dim**2 * bytes_per_element

    def kv_bytes(self, tokens: int, bytes_per_element: int = 2) -> int:
        """Keys and values of `tokens` tokens."""
        return self.attention_layers * self.kv_heads * 2 * self.attention_head_dim * tokens * bytes_per_element


SHAPES = (
    Shape("Qwen3.5 0.8B, 2B", 18, 16, 128, 6, 2, 256),
    Shape("Qwen3.5 4B, 9B", 24, 32, 128, 8, 4, 256),
    Shape("Qwen3.5 27B", 48, 48, 128, 16, 4, 256),
    Shape("Qwen3.5 35B-A3B", 30, 32, 128, 10, 2, 256),
    Shape("Qwen3-Next 80B-A3B", 36, 32, 128, 12, 2, 256),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens-per-second", type=float, default=10_000, help="prefill speed of the model")
    parser.add_argument("--chunk-tokens", type=int, nargs="+", default=[128, 512, 2048])
    options = parser.parse_args()
    print(f"fp16 states, MB (1e6 bytes); break-even at {options.tokens_per_second:,.0f} prefilled tokens/s")
    print(f"{'model':20s} {'T and U':>8s} " + " ".join(f"{f'{n} tokens':>22s}" for n in options.chunk_tokens))
    for shape in SHAPES:
        cells = []
        for tokens in options.chunk_tokens:
            size = shape.state_bytes() + shape.kv_bytes(tokens)
            bandwidth = size / (tokens / options.tokens_per_second)
            cells.append(f"{size / 1e6:8.1f} at {bandwidth / 1e9:6.2f} GB/s")
        print(f"{shape.name:20s} {shape.state_bytes() / 1e6:8.1f} " + " ".join(f"{cell:>22s}" for cell in cells))


if __name__ == "__main__":
    main()
