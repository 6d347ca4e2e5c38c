// One rank whose peers are elsewhere: the FIFOs end here, and a driver carries messages and credits between them.
#pragma once

#include "interpreter.hpp"

namespace teccl {

// The far half of every connection is a FIFO in another process. On an outgoing connection the engine pushes and the
// driver carries messages away, popping each when its credit comes back: the slots in flight are the connection's
// credits, however deep the network buffers. On an incoming one the driver lands messages in order and returns a
// credit for each that the engine has popped.
class Endpoint {
 public:
  struct Line {
    Connection connection;
    Traffic traffic;
    Fifo fifo;
    std::uint64_t carried = 0;   // outgoing: handed to the driver; incoming: credits handed to the driver
    Line(const Connection& connection, const Traffic& traffic, std::size_t slots, std::size_t slot_bytes)
        : connection(connection), traffic(traffic), fifo(slots, slot_bytes) {}
  };
  struct Parcel {
    std::size_t line, slot, bytes;
  };
  struct Credit {
    std::size_t line, slot;
  };

  // `memory` holds every rank's chunk counts (that is checked), but only this rank's addresses are used.
  Endpoint(const Setting& setting, int rank, const std::vector<Memory>& memory);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  void restart() { rank_->restart(); }
  std::int64_t advance() { return rank_->advance(); }
  std::uint64_t progress() const { return rank_->progress(); }
  // Every threadblock is done and every message sent has been taken at the far end.
  bool finished() const;
  std::vector<std::string> blocked() const;

  const std::vector<std::unique_ptr<Line>>& outgoing() const { return outgoing_; }
  const std::vector<std::unique_ptr<Line>>& incoming() const { return incoming_; }

  std::vector<Parcel> departures();                          // messages pushed since the last call
  std::vector<Credit> credits();                             // messages consumed since the last call
  void landed(std::size_t line, std::size_t bytes) { incoming_.at(line)->fifo.push(bytes); }
  void credited(std::size_t line) { outgoing_.at(line)->fifo.pop(); }

 private:
  Setting setting_;
  std::vector<std::unique_ptr<Line>> outgoing_, incoming_;
  std::unique_ptr<Rank> rank_;
};

}  // namespace teccl
