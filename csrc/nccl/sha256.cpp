#include "sha256.hpp"

#include <cstring>

namespace teccl::nccl {

namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes, and of the square roots of the
// first 8: made as they are defined, in integers.
std::uint32_t fraction_of_root(int prime, int degree) {
  // The largest x with x^degree ≤ prime · 2^(32·degree), bit by bit; its lower half is the fraction.
  unsigned __int128 limit = static_cast<unsigned __int128>(prime) << 64;
  std::uint64_t root = 0;
  for (int bit = 35; bit >= 0; --bit) {
    const std::uint64_t tried = root | (1ULL << bit);
    // For cubes, x^3 ≤ p · 2^96 is compared as x^2 ≤ (p · 2^96) / x, rounded down.
    const unsigned __int128 square = static_cast<unsigned __int128>(tried) * tried;
    bool fits;
    if (degree == 2) {
      fits = square <= limit;
    } else {
      const unsigned __int128 quotient = limit / tried, rest = limit % tried;  // (p · 2^64) / x, then 32 bits more
      fits = square <= (quotient << 32) + ((rest << 32) / tried);
    }
    if (fits) root = tried;
  }
  return static_cast<std::uint32_t>(root);
}

struct Constants {
  std::uint32_t round[64];
  std::uint32_t start[8];
  Constants() {
    int found = 0;
    for (int candidate = 2; found < 64; ++candidate) {
      bool prime = true;
      for (int divisor = 2; divisor * divisor <= candidate; ++divisor) prime = prime && candidate % divisor != 0;
      if (!prime) continue;
      round[found] = fraction_of_root(candidate, 3);
      if (found < 8) start[found] = fraction_of_root(candidate, 2);
      ++found;
    }
  }
};

std::uint32_t rotated(std::uint32_t x, int by) { return (x >> by) | (x << (32 - by)); }

void take(const std::uint8_t* block, std::uint32_t* state, const Constants& constants) {
  std::uint32_t w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = static_cast<std::uint32_t>(block[4 * i]) << 24 | static_cast<std::uint32_t>(block[4 * i + 1]) << 16 |
           static_cast<std::uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const std::uint32_t a = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t b = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  std::uint32_t v[8];
  std::memcpy(v, state, sizeof v);
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t s1 = rotated(v[4], 6) ^ rotated(v[4], 11) ^ rotated(v[4], 25);
    const std::uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + constants.round[i] + w[i];
    const std::uint32_t s0 = rotated(v[0], 2) ^ rotated(v[0], 13) ^ rotated(v[0], 22);
    const std::uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    std::memmove(v + 1, v, 7 * sizeof v[0]);
    v[4] += t1;
    v[0] = t1 + t2;
  }
  for (int i = 0; i < 8; ++i) state[i] += v[i];
}

}  // namespace

Digest sha256(const std::uint8_t* data, std::size_t size) {
  static const Constants constants;
  std::uint32_t state[8];
  std::memcpy(state, constants.start, sizeof state);
  std::size_t at = 0;
  for (; at + 64 <= size; at += 64) take(data + at, state, constants);
  std::uint8_t tail[128] = {};
  const std::size_t rest = size - at, length = rest < 56 ? 64 : 128;
  if (rest != 0) std::memcpy(tail, data + at, rest);
  tail[rest] = 0x80;
  for (int i = 0; i < 8; ++i)
    tail[length - 1 - i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(size) * 8 >> (8 * i));
  for (std::size_t block = 0; block < length; block += 64) take(tail + block, state, constants);
  Digest digest;
  for (int i = 0; i < 32; ++i) digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

}  // namespace teccl::nccl
