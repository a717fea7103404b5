"""ModelConfig: the dimensions of a qwen3_5_moe text model, read from config.json and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lily.checkpoint.config_fields import ConfigFields
from lily.checks.quoting import quoted_text

SUPPORTED = (
    "supported are qwen3_5_moe (with a text_config) and qwen3_5_moe_text: take an upload of Qwen3.6-35B-A3B or of a "
    "model of its architecture"
)
_ROPE_TYPES = ("default", "mrope")  # the positions of text are the same in all of mrope's sections
_UNSCALED_BY_ONE = ("linear", "dynamic", "yarn")  # without effect where their factor is 1
_SILU = ("silu", "swish")  # two names for the same function
_OUTER_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")

_MAX_DIMENSION = 1 << 24
_MAX_LAYERS = 4096
_MAX_EXPERTS = 1 << 16
_MAX_CONTEXT = 1 << 31
_MAX_ELEMENTS = 1 << 40


class LayerType(str, Enum):
    linear_attention = "linear_attention"
    full_attention = "full_attention"


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions of the text model; mirrors weights/config.h field by field."""

    hidden_size: int
    vocab_size: int  # rows of the embedding, padding included
    max_position_embeddings: int
    layer_types: tuple[LayerType, ...]

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int  # leading dimensions of each head that are rotated; even
    rope_theta: float

    linear_num_key_heads: int
    linear_num_value_heads: int  # a multiple of linear_num_key_heads
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_topk_prob: bool = True

    rms_norm_eps: float = 1e-6

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_types)

    @property
    def num_linear_layers(self) -> int:
        return sum(kind is LayerType.linear_attention for kind in self.layer_types)

    @property
    def num_full_attention_layers(self) -> int:
        return self.num_hidden_layers - self.num_linear_layers

    @property
    def query_dim(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_dim(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def linear_key_dim(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_dim(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def linear_conv_dim(self) -> int:
        """Channels of the causal convolution: [query | key | value]."""
        return 2 * self.linear_key_dim + self.linear_value_dim


def text_section(raw: Mapping[str, Any], where: str) -> ConfigFields:
    """The object that describes the text model: text_config of a nested config, or a flat config itself."""
    outer = ConfigFields(raw, where)
    kind = outer.text("model_type", default="")
    if not kind:
        outer.fail("model_type", f"is missing; {SUPPORTED}")
    if kind not in _OUTER_TYPES:
        outer.fail("model_type", f"{quoted_text(repr(kind))} is not supported; {SUPPORTED}")
    text = outer.section("text_config")
    if text is None:
        return _with_usual_names(outer)
    inner = text.text("model_type", default="qwen3_5_moe_text")
    if inner not in _OUTER_TYPES:
        text.fail("model_type", f"{quoted_text(repr(inner))} is not supported; {SUPPORTED}")
    return _with_usual_names(text)


def _with_usual_names(fields: ConfigFields) -> ConfigFields:
    """The fields, with alternative names mapped to the usual ones."""
    if fields.get("num_experts") is None and fields.get("num_local_experts") is not None:
        return ConfigFields({**fields.values, "num_experts": fields.get("num_local_experts")}, fields.where)
    return fields


def parse_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Read and check the text model's dimensions.

    Parameters
    ----------
    raw
        The parsed config.json, nested (`text_config`) or flat.
    where
        Path of the file, for errors.

    Raises
    ------
    ConfigError
        A field is missing, has a wrong type or value, or asks for something that is not supported.
    """
    fields = text_section(raw, where)
    _refuse_unsupported(fields)
    rope_theta, partial_rotary_factor = _rope(fields)
    head_dim = fields.integer("head_dim", high=_MAX_DIMENSION)
    config = ModelConfig(
        hidden_size=fields.integer("hidden_size", high=_MAX_DIMENSION),
        vocab_size=fields.integer("vocab_size", high=_MAX_DIMENSION),
        max_position_embeddings=fields.integer("max_position_embeddings", high=_MAX_CONTEXT),
        layer_types=_layer_types(fields),
        num_attention_heads=fields.integer("num_attention_heads", high=_MAX_DIMENSION),
        num_key_value_heads=fields.integer("num_key_value_heads", high=_MAX_DIMENSION),
        head_dim=head_dim,
        rotary_dim=int(head_dim * partial_rotary_factor),
        rope_theta=rope_theta,
        linear_num_key_heads=fields.integer("linear_num_key_heads", high=_MAX_DIMENSION),
        linear_num_value_heads=fields.integer("linear_num_value_heads", high=_MAX_DIMENSION),
        linear_key_head_dim=fields.integer("linear_key_head_dim", high=_MAX_DIMENSION),
        linear_value_head_dim=fields.integer("linear_value_head_dim", high=_MAX_DIMENSION),
        linear_conv_kernel_dim=fields.integer("linear_conv_kernel_dim", low=2, high=1024, default=4),
        num_experts=fields.integer("num_experts", high=_MAX_EXPERTS),
        num_experts_per_tok=fields.integer("num_experts_per_tok", high=_MAX_EXPERTS),
        moe_intermediate_size=fields.integer("moe_intermediate_size", high=_MAX_DIMENSION),
        shared_expert_intermediate_size=fields.integer("shared_expert_intermediate_size", high=_MAX_DIMENSION),
        norm_topk_prob=fields.boolean("norm_topk_prob", default=True),
        rms_norm_eps=fields.number("rms_norm_eps", low=1e-30, high=1.0, default=1e-6),
    )
    _check_dimensions(config, fields)
    return config


def tied_embeddings(raw: Mapping[str, Any], where: str, *, has_head: bool) -> bool:
    """Whether the output head shares the embedding's matrix.

    If the two levels of a nested config disagree, the tensors decide: `has_head` says whether the checkpoint has its
    own head.
    """
    text = text_section(raw, where)
    answers = {
        fields.boolean("tie_word_embeddings", default=False)
        for fields in (text, ConfigFields(raw, where))
        if fields.get("tie_word_embeddings") is not None
    }
    if len(answers) == 2:
        return not has_head
    return answers == {True}


def _refuse_unsupported(fields: ConfigFields) -> None:
    if fields.get("num_experts") in (None, 0):
        fields.fail(
            "num_experts",
            "is missing or 0: dense models are not supported; every layer must be a mixture of experts: "
            "take Qwen3.6-35B-A3B instead of a dense model",
        )
    dense = fields.get("mlp_only_layers")
    if dense not in (None, []):
        fields.fail(
            "mlp_only_layers",
            "must be empty: dense layers are not supported; every layer must be a mixture of experts",
        )
    if fields.integer("decoder_sparse_step", high=1 << 31, default=1) != 1:
        fields.fail("decoder_sparse_step", "must be 1: every layer must be a mixture of experts")
    if fields.boolean("attention_bias", default=False):
        fields.fail("attention_bias", "must be false: attention projections with a bias are not supported")
    if not fields.boolean("attn_output_gate", default=True):
        fields.fail("attn_output_gate", "must be true: attention without an output gate is not supported")
    activation = fields.text("hidden_act", default="silu")
    if activation not in _SILU:
        fields.fail("hidden_act", f"{quoted_text(repr(activation))} is not supported; supported: 'silu', 'swish'")
    gate = fields.text("output_gate_type", default="silu")
    if gate not in _SILU:
        fields.fail("output_gate_type", f"{quoted_text(repr(gate))} is not supported; supported: 'silu', 'swish'")
    window = fields.get("sliding_window")
    if window is not None and fields.boolean("use_sliding_window", default=True):
        fields.fail("sliding_window", "must be null: sliding-window attention is not supported")


def _rope(fields: ConfigFields) -> tuple[float, float]:
    """(theta, rotated part of each head). rope_parameters takes precedence over the fields of older configs."""
    parameters = fields.section("rope_parameters")
    places = [place for place in (parameters, fields.section("rope_scaling")) if place is not None]
    for place in places:
        for key in ("rope_type", "type"):
            kind = place.text(key, default="default")
            if kind not in _ROPE_TYPES and not _is_unscaled(place, kind):
                place.fail(
                    key,
                    f"{quoted_text(repr(kind))} is not supported; supported is 'default': remove the scaling of "
                    "positions from config.json, which only contexts beyond the model's own need",
                )

    def number(name: str, default: float | None, high: float) -> float:
        for place in (*places, fields):
            if place.get(name) is not None:
                return place.number(name, low=1e-9, high=high)
        if default is None:
            fields.fail(name, "is missing, in rope_parameters too; take config.json from its source")
        return default

    return number("rope_theta", None, 1e30), number("partial_rotary_factor", 0.25, 1.0)


def _is_unscaled(place: ConfigFields, kind: str) -> bool:
    """Whether a scaling of positions leaves them unchanged."""
    temper = [place.get(name) for name in ("attention_factor", "mscale", "mscale_all_dim")]
    return kind in _UNSCALED_BY_ONE and place.get("factor") == 1 and all(one in (None, 1) for one in temper)


def _layer_types(fields: ConfigFields) -> tuple[LayerType, ...]:
    names = fields.strings("layer_types")
    high = _MAX_LAYERS
    if names is None:
        count = fields.integer("num_hidden_layers", high=high)
        interval = fields.integer("full_attention_interval", high=1 << 31, default=4)
        return tuple(
            LayerType.linear_attention if (layer + 1) % interval else LayerType.full_attention for layer in range(count)
        )
    count = fields.integer("num_hidden_layers", high=high, default=len(names))
    if len(names) != count:
        fields.fail("layer_types", f"has {len(names)} entries but num_hidden_layers is {count}")
    supported = {kind.value: kind for kind in LayerType}
    for layer, name in enumerate(names):
        if name not in supported:
            fields.fail(
                f"layer_types[{layer}]",
                f"{quoted_text(repr(name))} is not supported; supported are {' and '.join(supported)}",
            )
    return tuple(supported[name] for name in names)


def _check_dimensions(config: ModelConfig, fields: ConfigFields) -> None:
    """Check the dimensions against each other; sizes first, so that nothing below can overflow 64 bits."""
    hidden = config.hidden_size
    sizes = {
        "vocab_size x hidden_size": config.vocab_size * hidden,
        "num_attention_heads x head_dim x hidden_size": 2 * config.query_dim * hidden,
        "num_key_value_heads x head_dim x hidden_size": config.key_value_dim * hidden,
        "the linear attention's projections": config.linear_conv_dim * hidden,
        "the linear attention's convolution": config.linear_conv_dim * config.linear_conv_kernel_dim,
        "the linear attention's state": config.linear_value_dim * config.linear_key_head_dim,
        "the experts of one layer": config.num_experts * config.moe_intermediate_size * hidden,
        "the shared expert": config.shared_expert_intermediate_size * hidden,
    }
    for name, elements in sizes.items():
        if elements > _MAX_ELEMENTS:
            fields.fail(name, f"would have {elements} elements, above the limit of 2^40: the file is damaged")
    if config.num_attention_heads % config.num_key_value_heads:
        fields.fail(
            "num_attention_heads",
            f"({config.num_attention_heads}) must be a multiple of num_key_value_heads ({config.num_key_value_heads})",
        )
    if config.linear_num_value_heads % config.linear_num_key_heads:
        fields.fail(
            "linear_num_value_heads",
            f"({config.linear_num_value_heads}) must be a multiple of linear_num_key_heads "
            f"({config.linear_num_key_heads})",
        )
    if config.num_experts_per_tok > config.num_experts:
        fields.fail(
            "num_experts_per_tok",
            f"({config.num_experts_per_tok}) must not exceed num_experts ({config.num_experts})",
        )
    if config.rotary_dim < 2 or config.rotary_dim % 2:
        fields.fail(
            "partial_rotary_factor",
            f"of head_dim {config.head_dim} gives {config.rotary_dim} rotated dimensions; "
            "they must be even and at least 2",
        )
