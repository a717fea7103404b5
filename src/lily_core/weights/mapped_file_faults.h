// weights/mapped_file_faults.h -- names the mapped file where the process ends because the file became shorter.
//
// A page that a mapped file no longer has ends the process with SIGBUS, which tells nobody why. A program that owns its
// process (the command line, the server) lets report_mapping_faults() say it; a library never does by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lily {

// The mappings that a report can name. A process's first 256 at a time are known; others are reported without a name.
void note_mapping(const std::byte* begin, std::uint64_t size, const std::string& path);
void forget_mapping(const std::byte* begin);

// From now on SIGBUS writes one line to standard error before it ends the process as ever. Returns false, and changes
// nothing, where something else handles the signal already.
bool report_mapping_faults();

}  // namespace lily
