// weights/mapped_file_faults.h -- names the mapped file whose truncation ends the process.
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

// Makes SIGBUS write one line to standard error before it ends the process as usual. Returns false, and changes
// nothing, if something else already handles the signal.
bool report_mapping_faults();

}  // namespace lily
