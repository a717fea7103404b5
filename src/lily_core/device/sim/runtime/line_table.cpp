// sim/runtime/line_table.cpp -- a text table: one "hex-address file:line" a line, sorted.
#include "runtime/line_table.h"

#include <link.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <vector>

namespace lily_sim {
namespace {

struct Image {
  std::uintptr_t base = 0;  // load address
  std::uintptr_t begin = 0, end = 0;
};

struct Row {
  std::uintptr_t offset;
  std::string place;
};

std::vector<Row>& rows() {
  static std::vector<Row> table;
  return table;
}

int find_image(dl_phdr_info* information, std::size_t /*size*/, void* out) {
  Image image{information->dlpi_addr, ~std::uintptr_t{0}, 0};
  for (int i = 0; i < information->dlpi_phnum; ++i) {
    const auto& header = information->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const std::uintptr_t begin = information->dlpi_addr + header.p_vaddr;
    image.begin = std::min(image.begin, begin);
    image.end = std::max(image.end, begin + header.p_memsz);
  }
  const auto self = reinterpret_cast<std::uintptr_t>(&find_image);
  if (self < image.begin || self >= image.end) return 0;
  *static_cast<Image*>(out) = image;
  return 1;
}

const Image& own_image() {
  static const Image image = [] {
    Image found;
    dl_iterate_phdr(find_image, &found);
    return found;
  }();
  return image;
}

}  // namespace

void load_line_table(const char* path) {
  std::ifstream file(path);
  std::string address, place;
  rows().clear();
  while (file >> address && std::getline(file >> std::ws, place)) {
    rows().push_back({std::stoull(address, nullptr, 16), place});
  }
}

std::string describe_place(std::uintptr_t return_address) {
  const std::uintptr_t offset = return_address - own_image().base;
  const auto row = std::lower_bound(rows().begin(), rows().end(), offset,
                                    [](const Row& a, std::uintptr_t value) { return a.offset < value; });
  if (row != rows().end() && row->offset == offset) return row->place;
  char text[40];
  std::snprintf(text, sizeof text, "address 0x%lx", static_cast<unsigned long>(offset));
  return text;
}

bool in_library(std::uintptr_t address) { return address >= own_image().begin && address < own_image().end; }

}  // namespace lily_sim
