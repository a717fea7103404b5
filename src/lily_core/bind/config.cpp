// bind/config.cpp -- binds weights/config.h.
#include "weights/config.h"

#include <nanobind/stl/vector.h>

#include "bind/bind.h"

namespace nb = nanobind;

namespace lily::bind {

void bind_config(nb::module_& module) {
  nb::enum_<LayerType>(module, "LayerType")
      .value("linear_attention", LayerType::linear_attention)
      .value("full_attention", LayerType::full_attention);
  nb::class_<ModelConfig>(module, "ModelConfig", "Dimensions of a qwen3_5_moe text model.")
      .def(nb::init<>())
      .def("validate", &ModelConfig::validate)
      .def_rw("hidden_size", &ModelConfig::hidden_size)
      .def_rw("vocab_size", &ModelConfig::vocab_size)
      .def_rw("max_position_embeddings", &ModelConfig::max_position_embeddings)
      .def_rw("layer_types", &ModelConfig::layer_types)
      .def_rw("num_attention_heads", &ModelConfig::num_attention_heads)
      .def_rw("num_key_value_heads", &ModelConfig::num_key_value_heads)
      .def_rw("head_dim", &ModelConfig::head_dim)
      .def_rw("rotary_dim", &ModelConfig::rotary_dim)
      .def_rw("rope_theta", &ModelConfig::rope_theta)
      .def_rw("linear_num_key_heads", &ModelConfig::linear_num_key_heads)
      .def_rw("linear_num_value_heads", &ModelConfig::linear_num_value_heads)
      .def_rw("linear_key_head_dim", &ModelConfig::linear_key_head_dim)
      .def_rw("linear_value_head_dim", &ModelConfig::linear_value_head_dim)
      .def_rw("linear_conv_kernel_dim", &ModelConfig::linear_conv_kernel_dim)
      .def_rw("num_experts", &ModelConfig::num_experts)
      .def_rw("num_experts_per_tok", &ModelConfig::num_experts_per_tok)
      .def_rw("moe_intermediate_size", &ModelConfig::moe_intermediate_size)
      .def_rw("shared_expert_intermediate_size", &ModelConfig::shared_expert_intermediate_size)
      .def_rw("norm_topk_prob", &ModelConfig::norm_topk_prob)
      .def_rw("rms_norm_eps", &ModelConfig::rms_norm_eps);
}

}  // namespace lily::bind
