#include "exchange.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

namespace teccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t cache_line = 64;
// What several sources are combined in, so that the sum stays in the cache.
constexpr std::size_t block_bytes = 32 << 10;
// How long to sleep before asking whether the other is still there.
constexpr int nap_ms = 50;

double seconds_of(Clock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

std::string named(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

std::int64_t Pieces::begin(std::int64_t part, std::int64_t round) const {
  const std::int64_t first = share * part / parts;
  return first + (share * (part + 1) / parts - first) * round / rounds;
}

std::size_t Pieces::stride() const {
  const std::int64_t longest_part = (share + parts - 1) / parts;
  const auto longest = static_cast<std::size_t>((longest_part + rounds - 1) / rounds);
  return (longest * element_bytes + cache_line - 1) / cache_line * cache_line;
}

SharedRanks::SharedRanks(int rank, std::vector<Segment> segments, Gone gone, int eager)
    : rank_(rank), segments_(std::move(segments)), gone_(std::move(gone)), eager_(eager) {}

std::int64_t SharedRanks::rounds_for(const Exchange& exchange, std::int64_t share, std::size_t element_bytes) const {
  std::size_t room = segments_.front().bank_bytes();
  for (const Segment& each : segments_) room = std::min(room, each.bank_bytes());
  const auto slots = static_cast<std::size_t>(std::max<std::int64_t>(exchange.slots, 1));
  if (slots > Segment::most_slots) return 0;
  const std::size_t slot_elements = room / slots / cache_line * cache_line / element_bytes;
  if (slot_elements == 0) return 0;
  const std::int64_t longest_part = (share + exchange.parts - 1) / exchange.parts;
  return std::max<std::int64_t>(1, (longest_part + static_cast<std::int64_t>(slot_elements) - 1) /
                                       static_cast<std::int64_t>(slot_elements));
}

void SharedRanks::run(const Exchange& exchange, const Pieces& pieces, std::byte* const memory[3], Combine combine,
                      double timeout, std::vector<Traced>* traced) {
  timeout_ = timeout;
  if (segment(rank_).header().broken.load()) throw std::runtime_error(named(rank_) + " has given up before");
  try {
    for (std::int64_t number = 0; number < pieces.rounds; ++number)
      round(exchange, pieces, number, memory, combine, traced);
  } catch (...) {
    segment(rank_).tell(segment(rank_).header().broken, 1);
    throw;
  }
}

void SharedRanks::round(const Exchange& exchange, const Pieces& pieces, std::int64_t number, std::byte* const memory[3],
                        Combine combine, std::vector<Traced>* traced) {
  ++round_;
  const auto caught_up = [this](std::uint32_t finished) { return static_cast<std::int32_t>(finished - round_) >= -2; };
  for (std::size_t rank = 0; rank < segments_.size(); ++rank)
    wait(static_cast<int>(rank), segments_[rank].header().finished, caught_up);

  const std::size_t stride = pieces.stride();
  const auto own = [&](const Where& where, std::int64_t part) {
    if (where.from >= 2)
      return (where.from == 2 ? memory[2] : segment(rank_).bank(round_)) + static_cast<std::size_t>(where.position) * stride;
    const std::int64_t element = where.position / pieces.parts * pieces.share + pieces.begin(part, number);
    return memory[where.from] + static_cast<std::size_t>(element) * pieces.element_bytes;
  };
  std::vector<const std::byte*> sources;
  for (std::size_t index = 0; index < exchange.moves.size(); ++index) {
    const Move& move = exchange.moves[index];
    const auto elements = static_cast<std::size_t>(pieces.end(move.part, number) - pieces.begin(move.part, number));
    const std::size_t bytes = elements * pieces.element_bytes;
    const auto begin = traced ? Clock::now() : Clock::time_point();
    sources.clear();
    for (const Where& where : move.sources) {
      const bool others = where.from >= 3 && where.from - 3 != rank_;
      sources.push_back(others ? awaited(where.from - 3, static_cast<std::size_t>(where.position), stride, bytes)
                               : own(where, move.part));
    }
    std::byte* at = own(move.at, move.part);
    if (sources.size() == 1) {
      if (at != sources[0] && bytes > 0) std::memmove(at, sources[0], bytes);
    } else {
      const std::size_t step = sources.size() == 2 ? elements : block_bytes / pieces.element_bytes;
      for (std::size_t first = 0; first < elements; first += step) {
        const std::size_t offset = first * pieces.element_bytes, count = std::min(step, elements - first);
        combine(at + offset, sources[0] + offset, sources[1] + offset, count);
        for (std::size_t k = 2; k < sources.size(); ++k) combine(at + offset, at + offset, sources[k] + offset, count);
      }
    }
    if (move.at.from >= 3) {
      Segment::Flag& flag = segment(rank_).flag(round_, static_cast<std::size_t>(move.at.position));
      flag.bytes = bytes;
      segment(rank_).tell(flag.round, round_);
    }
    if (traced)
      traced->push_back({index, static_cast<std::int64_t>(bytes), seconds_of(begin), seconds_of(Clock::now())});
  }
  segment(rank_).tell(segment(rank_).header().finished, round_);
}

const std::byte* SharedRanks::awaited(int rank, std::size_t slot, std::size_t stride, std::size_t bytes) {
  const Segment& theirs = segment(rank);
  const Segment::Flag& flag = theirs.flag(round_, slot);
  wait(rank, flag.round, [this](std::uint32_t round) { return round == round_; });
  if (flag.bytes != bytes)
    throw std::runtime_error(named(rank) + " sends " + std::to_string(flag.bytes) + " bytes where " + named(rank_) +
                             " expects " + std::to_string(bytes) + ": the ranks' calls differ");
  return theirs.bank(round_) + slot * stride;
}

void SharedRanks::wait(int rank, const std::atomic<std::uint32_t>& word,
                       const std::function<bool(std::uint32_t)>& ready) {
  for (int look = 0; look <= eager_; ++look)
    if (ready(word.load(std::memory_order_acquire))) return;
  const auto begin = Clock::now();
  for (bool gone = false;;) {
    const std::uint32_t seen = word.load(std::memory_order_seq_cst);
    if (ready(seen)) return;
    if (gone) throw std::runtime_error(named(rank) + "'s process has ended");
    if (segment(rank).header().broken.load()) throw std::runtime_error(named(rank) + " has given up; see its own error");
    if (std::chrono::duration<double>(Clock::now() - begin).count() > timeout_)
      throw std::runtime_error(named(rank) + " has not answered for " + std::to_string(static_cast<int>(timeout_)) + " s");
    segment(rank).sleep_on(word, seen, nap_ms);
    gone = gone_(rank);  // and then one more look: it may have done its part before it ended
  }
}

}  // namespace teccl
