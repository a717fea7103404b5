// bind/sampler.cpp -- binds engine/sampler.h.
#include "engine/sampler.h"

#include <nanobind/ndarray.h>

#include <span>

#include "bind/bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {

void bind_sampler(nb::module_& module) {
  nb::class_<Sampling>(module, "Sampling", "Sampling parameters; see lily.Sampling.")
      .def(
          "__init__",
          [](Sampling* self, double temperature, std::int64_t top_k, double top_p, double min_p) {
            new (self) Sampling{temperature, top_k, top_p, min_p};
          },
          "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a)
      .def("validate", &Sampling::validate);
  nb::class_<Sampler>(module, "Sampler", "Chooses tokens from logits.")
      .def(nb::init<>())
      .def(
          "sample",
          [](Sampler& self, const nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>& logits,
             const Sampling& sampling, std::uint64_t seed, std::uint64_t position) {
            return self.sample(std::span<const float>(logits.data(), logits.size()), sampling, seed, position);
          },
          "logits"_a, "sampling"_a, "seed"_a, "position"_a);
  module.def("uniform_at", &uniform_at, "seed"_a, "position"_a);
}

}  // namespace lily::bind
