// The interpreter of programs: one rank as a state machine that never blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "element.hpp"
#include "fifo.hpp"
#include "injection.hpp"
#include "program.hpp"

namespace teccl {

// How a run cuts its data. A chunk larger than a slot makes the whole program run several times, each iteration on
// the next slice of every chunk; a step of several chunks goes in transfers of as many slices as fit a slot.
struct Cut {
  Cut(std::size_t element_bytes, std::int64_t chunk_elements, std::size_t slot_bytes);

  std::size_t element_bytes;
  std::int64_t chunk_elements;
  std::int64_t slice_elements;      // of every iteration but perhaps the last
  std::int64_t iterations;
  std::int64_t chunks_per_transfer;  // 1..71, as the runtimes clamp it

  std::int64_t elements_in(std::int64_t iteration) const;  // of one chunk's slice
  std::int64_t transfers_of(const Step& step) const;
};

// What every rank of a run is given.
struct Setting {
  const Program* program;
  Cut cut;
  std::size_t slots;
  Combine combine;        // null: for copies only
  Scale scale = nullptr;  // given: every rank whose output is defined divides it by the number of ranks at the end
  int root = -1;          // −1: every rank's output is defined
  Injection injection;
};

// By nccl-tests' names of types and operations. Throws std::invalid_argument.
Setting setting_of(const Program& program, const std::string& type, const std::string& reduction,
                   std::int64_t chunk_elements, std::size_t slots, std::size_t slot_bytes, int root);

// Where one rank's input, output and scratch begin, in Buffer's order, and how many chunks each really has.
struct Memory {
  std::byte* begin[3];
  std::int64_t chunks[3];
};

struct Connection {
  std::int32_t src, dst, channel;
  bool operator<(const Connection& o) const {
    return std::tie(channel, src, dst) < std::tie(o.channel, o.src, o.dst);
  }
};

// Throws std::invalid_argument, naming gpu, tb and step, unless running the program can only touch memory inside
// `memory`, every connection has one owner at each end with matching counts, and elements that are combined can be.
// O(steps). A program that passes may still stall or compute nonsense.
void require_executable(const Setting& setting, const std::vector<Memory>& memory);

// What one run puts on a connection.
struct Traffic {
  std::int64_t sent = 0;           // messages
  std::int64_t taken = 0;          // messages that the far end receives; different from `sent`: it will stall
  std::size_t longest_bytes = 0;   // of any message sent
};
// Every connection that some threadblock names, used or not. O(steps · log connections).
std::map<Connection, Traffic> traffic_of(const Setting& setting);

// What a threadblock waits for before it can go on.
enum class Wait { nothing, dependency, message, slot };
struct Cursor {
  std::int64_t iteration, step, transfer;
};
// A line about a threadblock: where it is, and what it waits for.
std::string describe(const Setting& setting, int rank, std::size_t tb, const Cursor& at, Wait wait);
// A line for every connection whose far end takes fewer messages than are sent.
std::vector<std::string> never_received(const Setting& setting);

using FifoOf = std::function<Fifo*(const Connection&)>;
using StepFlags = std::vector<std::vector<bool>>;  // by threadblock and step

// One rank's threadblocks, each a cursor (iteration, step, transfer).
class Rank {
 public:
  // `lends`: the steps whose message may be sent from where it lies, as nothing writes there later (lending.hpp).
  Rank(const Setting& setting, int rank, const Memory& memory, const FifoOf& fifo, StepFlags lends = {});

  void restart();           // back to the first step of every threadblock
  std::int64_t advance();   // run every threadblock until it blocks (injection: less); the number of transfers done
  bool finished() const { return unfinished_ == 0; }
  std::uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }  // any thread may ask
  std::vector<std::string> blocked() const;  // a line for each unfinished threadblock: where, and what it waits for
  // Whether `tb` is at that step and its dependency lets it write.
  bool may_write(std::size_t tb, std::int64_t iteration, std::int64_t step) const;
  std::byte* destination(const Step& step, std::int64_t iteration, std::int64_t transfer) const;
  std::size_t message_bytes(const Step& step, std::int64_t iteration, std::int64_t transfer) const;

 private:
  struct Lane {
    const Threadblock* plan = nullptr;
    Fifo* out = nullptr;
    Fifo* in = nullptr;
    std::int64_t iteration = 0, step = 0, transfer = 0;
    bool finished = false;
    std::atomic<std::int64_t> signalled{0};  // steps up to the last one that others may wait for

    const Step& now() const { return plan->steps[static_cast<std::size_t>(step)]; }
  };

  Wait waits_for(const Lane& lane) const;
  std::int64_t run_until_blocked(Lane& lane);
  std::int64_t run_with(Mischief& mischief);
  void transfer(Lane& lane);
  void go_on(Lane& lane);
  void average();
  bool lends(const Lane& lane) const;
  bool dependency_met(const Lane& lane) const;
  std::byte* at(Buffer buffer, std::int64_t chunk, std::int64_t iteration) const;

  const Setting& setting_;
  int rank_;
  Memory memory_;
  StepFlags lends_;
  std::vector<Lane> lanes_;
  std::optional<Mischief> mischief_;
  std::size_t unfinished_ = 0;
  std::atomic<std::uint64_t> progress_{0};
};

// All ranks in this process, on a few worker threads.
class World {
 public:
  // Throws as require_executable does. Copies `memory`'s addresses; what they point to must outlive the World.
  World(const Setting& setting, const std::vector<Memory>& memory);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  struct Outcome {
    double seconds;
    std::vector<std::string> blocked;  // empty: every threadblock finished and every message was taken
    bool interrupted;
  };
  // Runs the program once. Gives up when no rank has moved for `timeout` seconds or `interrupted()` says so.
  Outcome run(std::size_t workers, double timeout, const std::function<bool()>& interrupted);

  std::size_t fifo_bytes() const;  // of all slots together

 private:
  std::uint64_t progress() const;
  std::vector<std::string> stuck() const;

  Setting setting_;
  std::map<Connection, std::unique_ptr<Fifo>> fifos_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace teccl
