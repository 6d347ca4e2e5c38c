// A rank's part of a collective among the ranks of one host, through memory that they share.
#pragma once

#include <functional>
#include <vector>

#include "element.hpp"
#include "segment.hpp"

namespace teccl {

// Where a piece of data lies. `from` 0, 1, 2: `position` of this rank's input, output or scratch; 3 + r: slot `position`
// of rank r's segment.
struct Where {
  std::int32_t from;
  std::int64_t position;
};

// Copy the one source, or combine all of them in their order, into `at`: part `part` of a share. A source in another
// rank's segment is waited for; a slot of one's own is published.
struct Move {
  std::int64_t part;
  Where at;
  std::vector<Where> sources;
};

// Positions in input and output are share · parts + part; those of scratch and slots are numbered as they come. `slots`:
// the most that any rank of the program publishes, so that all cut their data alike.
struct Exchange {
  std::int64_t parts, input_shares, output_shares, scratch, slots;
  std::vector<Move> moves;
};

// How many elements go at once. A share of `share` elements has its parts at share · p / parts, rounded down, and round
// r of `rounds` takes each part's elements length · r / rounds up to length · (r + 1) / rounds.
struct Pieces {
  std::int64_t share, parts, rounds;
  std::size_t element_bytes;

  std::int64_t begin(std::int64_t part, std::int64_t round) const;  // within the share
  std::int64_t end(std::int64_t part, std::int64_t round) const { return begin(part, round + 1); }
  std::size_t stride() const;  // bytes of a slot: the longest piece, in whole cache lines
};

// The ranks of a host, each with its segment.
class SharedRanks {
 public:
  using Gone = std::function<bool(int rank)>;  // whether that rank's process has ended
  struct Traced {
    std::size_t move;
    std::int64_t bytes;
    double begin, end;  // seconds of the steady clock
  };

  // `eager`: how often to look before sleeping; many where every rank has a core to itself.
  SharedRanks(int rank, std::vector<Segment> segments, Gone gone, int eager);

  // The fewest rounds in which an exchange of such shares fits the segments; 0 if none do.
  std::int64_t rounds_for(const Exchange& exchange, std::int64_t share, std::size_t element_bytes) const;

  // Do one rank's part; all ranks must, with exchanges of one program and the same pieces, in the same order. `memory`:
  // where input, output and scratch (exchange.scratch · pieces.stride() bytes) begin. Throws std::runtime_error when a
  // rank is gone, has given up, calls something else, or is silent for `timeout` seconds; from then on every call does.
  void run(const Exchange& exchange, const Pieces& pieces, std::byte* const memory[3], Combine combine, double timeout,
           std::vector<Traced>* traced);

 private:
  void round(const Exchange& exchange, const Pieces& pieces, std::int64_t number, std::byte* const memory[3],
             Combine combine, std::vector<Traced>* traced);
  const std::byte* awaited(int rank, std::size_t slot, std::size_t stride, std::size_t bytes);
  // Until the word is what `ready` wants.
  void wait(int rank, const std::atomic<std::uint32_t>& word, const std::function<bool(std::uint32_t)>& ready);
  const Segment& segment(int rank) const { return segments_[static_cast<std::size_t>(rank)]; }

  int rank_;
  std::vector<Segment> segments_;
  Gone gone_;
  int eager_;
  double timeout_ = 0;
  std::uint32_t round_ = 0;
};

}  // namespace teccl
