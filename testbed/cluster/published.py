"""Published models by name, as shapes: nothing is downloaded, and no weights are published ones.

OPT: Zhang et al. 2022, "OPT: Open Pre-trained Transformer Language Models", Table 1 (layers, heads, d_model), which
github.com/facebookresearch/metaseq, metaseq/launcher/opt_job_constants.py, repeats with d_ff = 4 d_model; vocabulary
(50,272) and context (2,048) of the released config.json files (facebook/opt-*). The released opt-350m is post-norm
with a 512-wide embedding (331 million parameters), unlike its row in the table; here it has the table's shape (356).

Llama 2: config.json of meta-llama/Llama-2-{7b,13b,70b}-hf: layers, widths, heads, num_key_value_heads, vocabulary,
rms_norm_eps 1e-5, rope_theta 10000. The paper (Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat
Models") has no table of shapes; its Table 1 states the context of 4k tokens, and grouped queries for 70B alone.

GPT-3: Brown et al. 2020, "Language Models are Few-Shot Learners", Table 2.1; d_ff = 4 d_model, and a context of 2,048
(section 2.1), vocabulary of GPT-2 (50,257), whose tokens it takes. Attention is dense here, where GPT-3 alternates
dense and banded layers. Two rows of that table do not add up: XL's 24 heads of 128 are not its 2,048 columns (16 heads
here), and 13B's 5,140 columns are not 40 heads of 128 (5,120 here).
"""

from __future__ import annotations

from dataclasses import replace

from testbed.cluster.specs import ModelSpec
from testbed.errors import InputError, unknown

_OPT = {  # layers, d_model, heads
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "1.3b": (24, 2048, 32),
    "2.7b": (32, 2560, 32),
    "6.7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "66b": (64, 9216, 72),
    "175b": (96, 12288, 96),
}
_GPT3 = {
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 16),
    "1.3b": (24, 2048, 16),
    "2.7b": (32, 2560, 32),
    "6.7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "175b": (96, 12288, 96),
}
_LLAMA2 = {  # layers, d_model, heads, kv_heads, d_ff
    "7b": (32, 4096, 32, 32, 11008),
    "13b": (40, 5120, 40, 40, 13824),
    "70b": (80, 8192, 64, 8, 28672),
}
DEFAULT_SEQUENCE = 1024  # tokens a sample, where the experiment does not say


def _classic(name: str, family: str, shape: tuple[int, int, int], vocabulary: int) -> ModelSpec:
    layers, d, heads = shape
    return ModelSpec(
        name, layers, d, heads, 4 * d, DEFAULT_SEQUENCE, vocabulary, family, positions=2048, tied_head=True
    )


def _llama(name: str, shape: tuple[int, int, int, int, int]) -> ModelSpec:
    layers, d, heads, kv_heads, d_ff = shape
    return ModelSpec(name, layers, d, heads, d_ff, DEFAULT_SEQUENCE, 32000, "llama", kv_heads, positions=4096)


PUBLISHED: dict[str, ModelSpec] = {
    **{f"opt-{size}": _classic(f"opt-{size}", "opt", shape, 50272) for size, shape in _OPT.items()},
    **{f"gpt-3-{size}": _classic(f"gpt-3-{size}", "gpt", shape, 50257) for size, shape in _GPT3.items()},
    **{f"llama-2-{size}": _llama(f"llama-2-{size}", shape) for size, shape in _LLAMA2.items()},
}


def published(name: str, *, sequence: int | None = None, where: str = "model.name") -> ModelSpec:
    """The shape of a published model, with samples of `sequence` tokens.

    Raises:
        InputError: no such model (the nearest is named), or more tokens than its context has.
    """
    spec = PUBLISHED.get(name.lower().replace("gpt3", "gpt-3").replace("llama2", "llama-2"))
    if spec is None:
        raise unknown(where, "model", name, PUBLISHED)
    if sequence is None:
        return spec
    if not 1 <= sequence <= spec.positions:
        raise InputError(
            where.replace("name", "sequence"), f"{sequence} tokens; {spec.name} has a context of {spec.positions}"
        )
    return replace(spec, sequence=sequence)
