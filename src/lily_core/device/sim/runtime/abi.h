// sim/runtime/abi.h -- the interface between a library of translated kernels and the sim device.
//
// Plain data, no standard header: translated kernels include it too, and must not see names that Metal lacks.
#pragma once

namespace lily_sim {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long;

constexpr u32 kAbiVersion = 1;
constexpr u32 kBufferSlots = 31;
constexpr u32 kFunctionConstants = 32;
constexpr u32 kSimdWidth = 32;
constexpr u32 kMaxThreads = 1024;
constexpr u32 kThreadgroupMemory = 32768;  // bytes a threadgroup may use
// What memory never written holds when allocations are poisoned: NaN as bfloat, half and float.
constexpr u16 kPoison = 0xffb5;

struct Size3 {
  u32 x, y, z;
};

enum class SlotKind : u32 { buffer, bytes };  // NOLINT(performance-enum-size): a word between libraries

struct Slot {
  u32 index;
  SlotKind kind;
  bool written;
  u32 size;  // bytes of an argument struct
  const char* name;
};

struct Constant {
  u32 index;
  const char* name;
};

// A kernel that can be launched. The lists end with an element whose name is null.
struct Entry {
  const char* name;
  void (*run)();
  const char* file;
  u32 line;
  u32 max_threads;
  bool takes_threadgroup_memory;
  const Slot* slots;
  const Constant* constants;
};

struct EntryList {
  const Entry* entries;
  u32 count;
};

// A buffer of the device, as far as the checks need to know it. `shadow` belongs to the checked library.
struct Memory {
  u8* base;
  u64 size;
  const char* label;
  bool poisoned;  // starts as kPoison: reading that pattern where no kernel wrote is an error
  void* shadow;
};

// A half-open range of bytes of a buffer; empty when begin >= end.
struct Range {
  u64 begin, end;
};

struct Binding {
  u32 index;
  Memory* memory;
  u64 offset, size;  // declared range
  bool written;
  Range read_range, written_range;  // out, checked library only: what was touched, from the buffer's start
};

struct Launch {
  const Entry* entry;
  Binding* bindings;
  u32 binding_count;
  u32 bytes_index;
  const void* bytes;
  u64 bytes_size;
  i32 constants[kFunctionConstants];
  u32 defined_constants;  // mask
  u32 threadgroup_bytes;
  Size3 threadgroups;
  u32 threads;
};

enum class Order : u32 { forward, reverse, random };  // NOLINT(performance-enum-size): a word between libraries

struct RunOptions {
  Order order;
  u64 seed;
  bool shuffle_stage;          // threadgroups of all launches of the stage in one random order
  bool check_declared_ranges;  // checked library only
};

// The outcome of a stage: an empty text, or one finding a line.
struct Report {
  char text[4096];
};

class Runner;  // threads, stacks and threadgroup memories

struct Library {
  u32 abi_version;
  bool checked;
  const EntryList* const* entry_lists;  // ends with null
  Runner* (*create_runner)(u32 workers);
  void (*destroy_runner)(Runner*);
  void (*run_stage)(Runner*, Launch* launches, u32 count, const RunOptions&, Report&);
  void (*release_memory)(Memory*);  // frees the shadow
  void (*load_lines)(const char* path);
};

}  // namespace lily_sim
