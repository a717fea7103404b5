// bind/snapshot.cpp -- binds engine/snapshot.h; the values of tensors travel as arrays of bytes.
#include "engine/snapshot.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "bind/bind.h"
#include "engine/non_finite.h"
#include "engine/session.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {
namespace {

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
using InputBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using InputLogits = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using InputTokens = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// (name, element type as safetensors calls it, shape)
using TensorDescription = std::tuple<std::string, std::string, std::vector<std::int64_t>>;

std::string_view type_name(StateType type) {
  switch (type) {
    case StateType::float32:
      return "F32";
    case StateType::float16:
      return "F16";
    case StateType::bfloat16:
      return "BF16";
  }
  throw Error(ErrorKind::invalid_argument, "unknown type of a state's tensor");
}

StateType state_type(const std::string& name) {
  for (const StateType type : {StateType::float32, StateType::float16, StateType::bfloat16}) {
    if (type_name(type) == name) return type;
  }
  throw Error(ErrorKind::invalid_argument, "unknown type of a state's tensor");
}

std::vector<TensorDescription> describe(const std::vector<StateTensor>& tensors) {
  std::vector<TensorDescription> all;
  all.reserve(tensors.size());
  for (const StateTensor& tensor : tensors) all.emplace_back(tensor.name, type_name(tensor.type), tensor.shape);
  return all;
}

template <class Value>
nb::ndarray<nb::numpy, Value, nb::ndim<1>> owned_array(std::unique_ptr<std::vector<Value>> values) {
  Value* data = values->data();
  const std::size_t size = values->size();
  const nb::capsule owner(values.get(), [](void* pointer) noexcept {
    std::unique_ptr<std::vector<Value>>(static_cast<std::vector<Value>*>(pointer));
  });
  static_cast<void>(values.release());
  return {data, {size}, owner};
}

Bytes export_tensor(const Snapshot& self, std::size_t index) {
  const std::vector<StateTensor> tensors = self.state().tensors(self.state().position());
  if (index >= tensors.size()) throw Error(ErrorKind::invalid_argument, "a state has no tensor of this index");
  auto values = std::make_unique<std::vector<std::uint8_t>>(byte_size(tensors[index]));
  {
    const nb::gil_scoped_release release;
    self.state().export_tensor(index, std::as_writable_bytes(std::span(*values)));
  }
  return owned_array(std::move(values));
}

void bind_frozen_sequence(nb::module_& module) {
  nb::class_<Snapshot>(module, "Snapshot", "A sequence frozen at one position; see lily.Snapshot.")
      .def_static(
          "take", [](Session& session, bool with_pending) { return session.snapshot(with_pending); }, "session"_a,
          "with_pending"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "restore_into", [](const Snapshot& self, Session& session) { session.restore(self); }, "session"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("position", &Snapshot::position)
      .def_prop_ro("pending", &Snapshot::pending)
      .def_prop_ro("bytes", &Snapshot::bytes)
      .def_prop_ro("own_bytes", &Snapshot::own_bytes)
      .def_prop_ro(
          "tokens",
          [](const Snapshot& self) { return owned_array(std::make_unique<std::vector<std::int32_t>>(self.tokens())); },
          nb::rv_policy::automatic)
      .def_prop_ro(
          "logits",
          [](const Snapshot& self) -> std::optional<nb::ndarray<nb::numpy, float, nb::ndim<1>>> {
            if (self.logits() == nullptr) return std::nullopt;
            return owned_array(std::make_unique<std::vector<float>>(*self.logits()));
          },
          nb::rv_policy::automatic)
      .def_prop_ro("has_logits", [](const Snapshot& self) { return self.logits() != nullptr; })
      .def("tensors", [](const Snapshot& self) { return describe(self.state().tensors(self.state().position())); })
      .def("export_tensor", &export_tensor, "index"_a)
      .def(
          "non_finite", [](const Snapshot& self) { return find_non_finite(self.state()); },
          nb::call_guard<nb::gil_scoped_release>(),
          "Where the state first holds a value that is NaN or infinite; None if all are finite.");
}

void bind_state_functions(nb::module_& module) {
  module.def(
      "state_tensors",
      [](const std::shared_ptr<Model>& model, std::int64_t position) {
        return describe(model->backend().create_state()->tensors(position));
      },
      "model"_a, "position"_a, "The tensors of a state at a position: (name, type, shape).");
  module.def(
      "first_non_finite",
      [](const InputBytes& values, const std::string& type) {
        const nb::gil_scoped_release release;
        return first_non_finite(std::as_bytes(std::span(values.data(), values.size())), state_type(type));
      },
      "values"_a, "type"_a, "Index of the first value that is NaN or infinite; None if all are finite.");
}

void bind_builder(nb::module_& module) {
  nb::class_<SnapshotBuilder>(module, "SnapshotBuilder", "Rebuilds a snapshot from the tensors of a file.")
      .def(nb::init<std::shared_ptr<Model>, std::int64_t>(), "model"_a, "position"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("tensors", [](const SnapshotBuilder& self) { return describe(self.tensors()); })
      .def(
          "import_tensor",
          [](SnapshotBuilder& self, std::size_t index, const InputBytes& values) {
            const nb::gil_scoped_release release;
            self.import_tensor(index, std::as_bytes(std::span(values.data(), values.size())));
          },
          "index"_a, "values"_a)
      .def(
          "build",
          [](SnapshotBuilder& self, const InputTokens& tokens, std::optional<std::int32_t> pending,
             const InputLogits& logits) {
            return self.build({tokens.data(), tokens.data() + tokens.size()}, pending,
                              {logits.data(), logits.data() + logits.size()});
          },
          "tokens"_a, "pending"_a.none(), "logits"_a);
}

}  // namespace

void bind_snapshot(nb::module_& module) {
  bind_frozen_sequence(module);
  bind_state_functions(module);
  bind_builder(module);
  nb::class_<MemoryLedger>(module, "MemoryLedger", "Memory that a set of snapshots holds, each shared piece once.")
      .def(nb::init<>())
      .def("add", &MemoryLedger::add, "snapshot"_a)
      .def("remove", &MemoryLedger::remove, "snapshot"_a)
      .def_prop_ro("bytes", &MemoryLedger::bytes);
}

}  // namespace lily::bind
