// cpu/chunk.cpp -- embedding and normalisation of a chunk's rows.
#include "cpu/chunk.h"

#include "cpu/embed.h"

namespace lily::cpu {

void Chunk::begin(std::span<const std::int32_t> ids, const Matrix& embed_tokens) {
  rows_ = static_cast<std::int64_t>(ids.size());
  hidden_.reserve(rows_ * config_.hidden_size);
  normalized_.reserve(rows_ * config_.hidden_size);
  compute_.for_rows(0, rows_, [&](std::int64_t row) {
    dequantize_row(embed_tokens, ids[static_cast<std::size_t>(row)], hidden(row));
  });
}

void Chunk::normalize(std::int64_t begin, std::int64_t end, const std::vector<float>& weight,
                      std::initializer_list<const Matrix*> matrices) {
  const KernelTable& kernels = compute_.kernels();
  input_.bind(normalized_.data(), end - begin, config_.hidden_size, matrices);
  compute_.for_rows(begin, end, [&](std::int64_t row) {
    kernels.rms_norm(hidden(row), weight.data(), config_.hidden_size, static_cast<float>(config_.rms_norm_eps),
                     input_.row(row - begin));
    input_.quantize(kernels, row - begin);
  });
}

std::size_t Chunk::bytes() const {
  return hidden_.bytes() + normalized_.bytes() + workspace_.bytes() + input_.bytes() + output_.bytes();
}

}  // namespace lily::cpu
