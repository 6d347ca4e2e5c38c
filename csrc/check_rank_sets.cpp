#include <stdexcept>

#include "check_data.hpp"

namespace teccl {
namespace {

constexpr std::size_t max_words = std::size_t{1} << 25;

std::uint64_t hash(const std::vector<std::uint64_t>& words) {
  std::uint64_t value = 0x9E3779B97F4A7C15u;
  for (std::uint64_t word : words) value = (value ^ word) * 0xBF58476D1CE4E5B9u + (value >> 29);
  return value;
}

}  // namespace

RankSets::RankSets(int ranks) : ranks_(ranks), words_((static_cast<std::size_t>(ranks) + 63) / 64) {
  std::vector<std::uint64_t> words(words_);
  for (int rank = 0; rank < ranks; ++rank) {
    words.assign(words_, 0);
    words[rank / 64] = std::uint64_t{1} << (rank % 64);
    intern(words);
  }
  words.assign(words_, 0);
  for (int rank = 0; rank < ranks; ++rank) words[rank / 64] |= std::uint64_t{1} << (rank % 64);
  all_ = intern(words);
}

int RankSets::intern(const std::vector<std::uint64_t>& words) {
  const std::uint64_t key = hash(words);
  auto [begin, end] = by_hash_.equal_range(key);
  for (auto candidate = begin; candidate != end; ++candidate) {
    if (std::equal(words.begin(), words.end(),
                   bits_.begin() + static_cast<std::ptrdiff_t>(candidate->second * words_))) {
      return candidate->second;
    }
  }
  if (bits_.size() + words_ > max_words) throw std::length_error("too many different partial sums");
  const auto number = static_cast<int>(bits_.size() / words_);
  bits_.insert(bits_.end(), words.begin(), words.end());
  by_hash_.emplace(key, number);
  return number;
}

bool RankSets::disjoint(int a, int b) const {
  for (std::size_t word = 0; word < words_; ++word) {
    if (bits_[a * words_ + word] & bits_[b * words_ + word]) return false;
  }
  return true;
}

int RankSets::unite(int a, int b) {
  if (a > b) std::swap(a, b);
  const std::uint64_t pair = (static_cast<std::uint64_t>(a) << 32) | static_cast<std::uint32_t>(b);
  auto known = unions_.find(pair);
  if (known != unions_.end()) return known->second;
  std::vector<std::uint64_t> words(words_);
  for (std::size_t word = 0; word < words_; ++word) words[word] = bits_[a * words_ + word] | bits_[b * words_ + word];
  const int set = intern(words);
  unions_.emplace(pair, set);
  return set;
}

bool RankSets::contains(int set, int rank) const { return (bits_[set * words_ + rank / 64] >> (rank % 64)) & 1; }

int RankSets::size(int set) const {
  int count = 0;
  for (int rank = 0; rank < ranks_; ++rank) count += contains(set, rank);
  return count;
}

}  // namespace teccl
