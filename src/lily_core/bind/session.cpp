// bind/session.cpp -- binds engine/session.h; every call that computes releases the GIL.
#include "engine/session.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "bind/bind.h"
#include "bind/token_mask.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {
namespace {

using TokenIds = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using ReadOnlyArray = nb::ndarray<nb::numpy, const T, nb::ndim<1>>;

std::span<const std::int32_t> as_span(const TokenIds& ids) { return {ids.data(), ids.size()}; }

// A NumPy view that keeps the values alive.
template <class T>
ReadOnlyArray<T> as_array(std::shared_ptr<const std::vector<T>> values) {
  using Owner = std::shared_ptr<const std::vector<T>>;
  const T* data = values->data();
  const std::size_t size = values->size();
  auto owner = std::make_unique<Owner>(std::move(values));
  const nb::capsule capsule(owner.get(),
                            [](void* pointer) noexcept { std::unique_ptr<Owner>(static_cast<Owner*>(pointer)); });
  static_cast<void>(owner.release());
  return ReadOnlyArray<T>(data, {size}, capsule);
}

// Between chunks: lets Python handle signals (Ctrl-C), then tells the caller, who may raise to stop.
ProgressCallback make_callback(const nb::object& progress) {
  return [progress = progress.ptr()](std::int64_t done, std::int64_t total) {
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (progress != Py_None) nb::borrow(progress)(done, total);
  };
}

ReadOnlyArray<float> prefill(Session& self, const TokenIds& ids, const nb::object& progress) {
  const ProgressCallback callback = make_callback(progress);
  Logits logits;
  {
    const nb::gil_scoped_release release;
    logits = self.prefill(as_span(ids), callback);
  }
  return as_array<float>(std::move(logits));
}

ReadOnlyArray<float> decode(Session& self, std::int32_t token) {
  Logits logits;
  {
    const nb::gil_scoped_release release;
    logits = self.decode(token);
  }
  return as_array<float>(std::move(logits));
}

std::pair<ReadOnlyArray<float>, ReadOnlyArray<std::int32_t>> score(Session& self, const TokenIds& ids,
                                                                   const nb::object& progress,
                                                                   const std::optional<TokenIds>& targets) {
  const ProgressCallback callback = make_callback(progress);
  const auto wanted = targets ? as_span(*targets) : std::span<const std::int32_t>();
  Scores scores;
  {
    const nb::gil_scoped_release release;
    scores = self.score(as_span(ids), wanted, callback);
  }
  return {as_array<float>(std::make_shared<const std::vector<float>>(std::move(scores.log_probabilities))),
          as_array<std::int32_t>(std::make_shared<const std::vector<std::int32_t>>(std::move(scores.argmax)))};
}

void bind_token_request(nb::module_& module) {
  nb::class_<TokenRequest>(module, "TokenRequest", "What the next token of a session is chosen by.")
      .def(
          "__init__",
          [](TokenRequest* self, const Sampling& sampling, std::uint64_t seed, std::int64_t candidates,
             std::vector<std::int32_t> stops, std::int64_t output_begin, std::optional<std::int64_t> logprobs) {
            new (self) TokenRequest{.sampling = sampling,
                                    .seed = seed,
                                    .candidates = candidates,
                                    .stops = std::move(stops),
                                    .output_begin = output_begin,
                                    .logprobs = logprobs};
          },
          "sampling"_a, "seed"_a, "candidates"_a, "stops"_a, "output_begin"_a, "logprobs"_a.none());
  nb::class_<TokenChoice>(module, "TokenChoice", "A chosen token.")
      .def_ro("token", &TokenChoice::token)
      .def_ro("stops", &TokenChoice::stops)
      .def_prop_ro("logprob", [](const TokenChoice& self) { return self.logprobs.chosen; })
      .def_prop_ro("top_logprobs", [](const TokenChoice& self) {
        std::vector<std::pair<std::int32_t, float>> pairs;
        pairs.reserve(self.logprobs.top.size());
        for (const TokenLogprob& entry : self.logprobs.top) pairs.emplace_back(entry.id, entry.logprob);
        return pairs;
      });
}

}  // namespace

void bind_session(nb::module_& module) {
  bind_token_request(module);
  nb::class_<Session>(module, "Session", "One sequence of a model; see lily.Session.")
      .def(nb::init<std::shared_ptr<Model>>(), "model"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("prefill", &prefill, "ids"_a, "progress"_a.none())
      .def("decode", &decode, "token"_a)
      .def("begin_generation", &Session::begin_generation)
      .def(
          "next_token",
          [](Session& self, const TokenRequest& request, const std::optional<MaskArray>& mask,
             std::uint64_t expected_revision) {
            const TokenMask allowed = as_mask(mask);
            const nb::gil_scoped_release release;
            return self.next_token(request, allowed, expected_revision);
          },
          "request"_a, "mask"_a.none(), "expected_revision"_a)
      .def("cancel", &Session::cancel)
      .def("score", &score, "ids"_a, "progress"_a.none(), "targets"_a.none() = nb::none())
      .def("reset", &Session::reset)
      .def("close", &Session::close)
      .def("begin_close", &Session::begin_close)
      .def_prop_ro("is_called_here", &Session::is_called_here)
      .def_prop_ro("closed", &Session::closed)
      .def_prop_ro("position", &Session::position)
      .def_prop_ro("tokens", &Session::tokens)
      .def_prop_ro("state_bytes", &Session::state_bytes)
      .def_prop_ro(
          "logits",
          [](Session& self) -> std::optional<ReadOnlyArray<float>> {
            auto logits = self.logits();
            if (logits == nullptr) return std::nullopt;
            return as_array<float>(std::move(logits));
          },
          nb::rv_policy::automatic);
}

}  // namespace lily::bind
