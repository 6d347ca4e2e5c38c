// One rank whose peers are elsewhere: the FIFOs end here, and a driver carries messages and credits between them.
#pragma once

#include "interpreter.hpp"

namespace teccl {

// The far half of every connection is a FIFO in another process. On an outgoing connection the engine pushes and the
// driver carries messages away, each slot free when its credit comes back: the messages in flight are the connection's
// credits, however deep the network buffers. On an incoming one the driver lands messages in order where it is told
// to, and returns a credit for each that the engine has popped.
//
// A message is copied into or out of a slot only where it must be: it is sent from the rank's own buffers if nothing
// overwrites it there (lending.hpp), and lands there if the step that receives it keeps it and may write already.
class Endpoint {
 public:
  struct Line {
    Connection connection;
    Traffic traffic;
    Fifo fifo;
    std::uint64_t carried = 0;  // outgoing: messages handed to the driver; incoming: credits handed to the driver
    Line(const Connection& connection, const Traffic& traffic, std::size_t slots)
        : connection(connection), traffic(traffic), fifo(slots, traffic.longest_bytes) {}
  };
  // The receiver's end, with the place in the program of the next message that the driver has not been told of.
  struct Arrivals : Line {
    using Line::Line;
    std::size_t tb = 0;
    std::int64_t iteration = 0, step = 0, transfer = 0;
    std::uint64_t due = 0, asked = 0, landed = 0;  // messages since the beginning
    std::vector<Fifo::Message> asked_for;          // by slot
  };
  struct Parcel {
    std::size_t line;
    Fifo::Message message;
  };

  // `memory` holds every rank's chunk counts (that is checked), but only this rank's addresses are used.
  Endpoint(const Setting& setting, int rank, const std::vector<Memory>& memory);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  void restart();
  std::int64_t advance() { return rank_->advance(); }
  std::uint64_t progress() const { return rank_->progress(); }
  // Every threadblock is done and every message sent has been taken at the far end.
  bool finished() const;
  std::vector<std::string> blocked() const;

  const std::vector<std::unique_ptr<Line>>& outgoing() const { return outgoing_; }
  const std::vector<std::unique_ptr<Arrivals>>& incoming() const { return incoming_; }

  std::vector<Parcel> departures();        // messages pushed since the last call
  std::vector<Parcel> landings();          // where messages are to land that may come from now on, in order by line
  std::vector<std::size_t> credits();      // a line for each message consumed since the last call
  void landed(std::size_t line);           // the line's next message is where it was to land
  void credited(std::size_t line) { outgoing_.at(line)->fifo.pop(); }

 private:
  const Step& next_receive(Arrivals& line) const;
  bool lands_in_place(const Step& step) const;

  Setting setting_;
  int rank_number_;
  std::vector<std::unique_ptr<Line>> outgoing_;
  std::vector<std::unique_ptr<Arrivals>> incoming_;
  std::unique_ptr<Rank> rank_;
};

}  // namespace teccl
