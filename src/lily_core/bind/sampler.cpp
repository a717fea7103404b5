// bind/sampler.cpp -- binds engine/sampler.h.
#include "engine/sampler.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bind/bind.h"
#include "bind/token_mask.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

void bind_sampler(nb::module_& module) {
  nb::class_<Sampling>(module, "Sampling", "Sampling parameters; see lily.Sampling.")
      .def(
          "__init__",
          [](Sampling* self, double temperature, std::int64_t top_k, double top_p, double min_p,
             double presence_penalty, double frequency_penalty, double repetition_penalty,
             std::vector<std::pair<std::int32_t, float>> logit_bias) {
            new (self) Sampling{
                temperature,          top_k, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty,
                std::move(logit_bias)};
          },
          "temperature"_a = 1.0, "top_k"_a = 0, "top_p"_a = 1.0, "min_p"_a = 0.0, "presence_penalty"_a = 0.0,
          "frequency_penalty"_a = 0.0, "repetition_penalty"_a = 1.0,
          "logit_bias"_a = std::vector<std::pair<std::int32_t, float>>())
      .def("validate", &Sampling::validate);
  nb::class_<Sampler>(module, "Sampler", "Chooses tokens from logits.")
      .def(nb::init<>())
      .def(
          "sample",
          [](Sampler& self, const Logits& logits, const Sampling& sampling, std::uint64_t seed, std::uint64_t position,
             const std::vector<std::int32_t>& output, const std::optional<MaskArray>& mask) {
            if (logits.size() == 0) throw Error(ErrorKind::invalid_argument, "there are no logits");
            return self.sample({.logits = {logits.data(), logits.size()},
                                .seed = seed,
                                .position = position,
                                .output = output,
                                .mask = as_mask(mask)},
                               sampling);
          },
          "logits"_a, "sampling"_a, "seed"_a, "position"_a, "output"_a = std::vector<std::int32_t>(),
          "mask"_a.none() = nb::none());
  module.def("uniform_at", &uniform_at, "seed"_a, "position"_a);
}

}  // namespace lily::bind
