// sim/runtime/line_table.h -- source lines of the checked accesses, by return address.
#pragma once

#include <cstdint>
#include <string>

namespace lily_sim {

// Reads the table that was made when the library was linked; without one, places are given as addresses.
void load_line_table(const char* path);

// "metal/file.metal:12" for a return address in the library.
std::string describe_place(std::uintptr_t return_address);

// Whether the address belongs to the library's own image (constants, tables).
bool in_library(std::uintptr_t address);

}  // namespace lily_sim
