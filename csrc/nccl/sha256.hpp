// SHA-256 (FIPS 180-4), to know a file for what was written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace teccl::nccl {

using Digest = std::array<std::uint8_t, 32>;
Digest sha256(const std::uint8_t* data, std::size_t size);

}  // namespace teccl::nccl
