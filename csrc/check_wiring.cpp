#include "check_wiring.hpp"

#include <algorithm>
#include <unordered_map>

namespace teccl {
namespace {

using Key = std::uint64_t;
using Owners = std::unordered_map<Key, std::int32_t>;  // end of a connection → its threadblock

Key connection_key(std::int32_t sender, std::int32_t receiver, std::int32_t channel) {
  return (static_cast<Key>(static_cast<std::uint16_t>(sender)) << 48) |
         (static_cast<Key>(static_cast<std::uint16_t>(receiver)) << 32) | static_cast<std::uint32_t>(channel);
}

// Claim one end of a connection for a threadblock; a second claim is an error.
void claim(Owners& owners, Key key, std::int32_t tb, const std::string& what, const Wiring& wiring,
           Findings& findings) {
  auto [owner, is_first] = owners.try_emplace(key, tb);
  if (!is_first) {
    findings.error("connection-shared", wiring.place_of_tb(tb),
                   say(what, " belongs to ", wiring.name_of_tb(owner->second),
                       " already; a connection has one threadblock at each end: use another channel"));
  }
}

}  // namespace

const Threadblock& Wiring::threadblock(std::int32_t tb) const {
  const std::int32_t rank = rank_of_tb[tb];
  return program->gpus[rank].threadblocks[tb - first_tb[rank]];
}

Place Wiring::place_of_tb(std::int32_t tb) const {
  const std::int32_t rank = rank_of_tb[tb];
  return {rank, tb - first_tb[rank], -1};
}

Place Wiring::place_of(std::int32_t step) const {
  const std::int32_t tb = tb_of_step[step];
  Place place = place_of_tb(tb);
  place.step = step - first_step[tb];
  return place;
}

std::string Wiring::name_of_tb(std::int32_t tb) const {
  const Place place = place_of_tb(tb);
  return say("gpu ", place.gpu, " tb ", place.tb);
}

std::string Wiring::name_of(std::int32_t step) const {
  const Place place = place_of(step);
  return say("gpu ", place.gpu, " tb ", place.tb, " step ", place.step);
}

Wiring lay_flat(const Program& program) {
  Wiring wiring;
  wiring.program = &program;
  for (std::int32_t rank = 0; rank < program.ranks(); ++rank) {
    wiring.first_tb.push_back(wiring.tb_count());
    for (const Threadblock& tb : program.gpus[rank].threadblocks) {
      wiring.first_step.push_back(wiring.step_count());
      for (const Step& step : tb.steps) {
        wiring.steps.push_back(&step);
        wiring.tb_of_step.push_back(wiring.tb_count());
      }
      wiring.rank_of_tb.push_back(rank);
    }
  }
  wiring.first_tb.push_back(wiring.tb_count());
  wiring.first_step.push_back(wiring.step_count());
  wiring.sender_of.assign(wiring.steps.size(), -1);
  wiring.receiver_of.assign(wiring.steps.size(), -1);
  wiring.waits_for.assign(wiring.steps.size(), -1);
  wiring.out_connection.assign(wiring.rank_of_tb.size(), -1);
  wiring.in_connection.assign(wiring.rank_of_tb.size(), -1);
  return wiring;
}

void connect(Wiring& wiring, Findings& findings) {
  Owners senders, receivers;
  for (std::int32_t tb = 0; tb < wiring.tb_count(); ++tb) {
    const Threadblock& block = wiring.threadblock(tb);
    const std::int32_t rank = wiring.rank_of_tb[tb];
    if (block.send_peer >= 0) {
      claim(senders, connection_key(rank, block.send_peer, block.channel), tb,
            say("sending to gpu ", block.send_peer, " on channel ", block.channel), wiring, findings);
    }
    if (block.recv_peer >= 0) {
      claim(receivers, connection_key(block.recv_peer, rank, block.channel), tb,
            say("receiving from gpu ", block.recv_peer, " on channel ", block.channel), wiring, findings);
    }
    for (std::int32_t step = wiring.first_step[tb]; step < wiring.first_step[tb + 1]; ++step) {
      const OpTraits traits = op_traits(wiring.steps[step]->op);
      const char* name = op_name(wiring.steps[step]->op);
      if (traits.sends && block.send_peer < 0) {
        findings.error("no-peer", wiring.place_of(step), say(name, " sends, but the threadblock has send=-1"));
      }
      if (traits.receives && block.recv_peer < 0) {
        findings.error("no-peer", wiring.place_of(step), say(name, " receives, but the threadblock has recv=-1"));
      }
    }
  }

  for (std::int32_t tb = 0; tb < wiring.tb_count(); ++tb) {
    const Threadblock& block = wiring.threadblock(tb);
    const std::int32_t rank = wiring.rank_of_tb[tb];
    if (block.send_peer >= 0) {
      const Key key = connection_key(rank, block.send_peer, block.channel);
      auto mirror = receivers.find(key);
      if (mirror == receivers.end()) {
        findings.error("mirror", wiring.place_of_tb(tb),
                       say("sends to gpu ", block.send_peer, " on channel ", block.channel,
                           ", where no threadblock of gpu ", block.send_peer, " receives from gpu ", rank));
      } else if (senders.at(key) == tb) {
        const auto connection = static_cast<std::int32_t>(wiring.connection_sender.size());
        wiring.out_connection[tb] = connection;
        wiring.in_connection[mirror->second] = connection;
        wiring.connection_sender.push_back(tb);
        wiring.connection_receiver.push_back(mirror->second);
      }
    }
    if (block.recv_peer >= 0 && !senders.count(connection_key(block.recv_peer, rank, block.channel))) {
      findings.error("mirror", wiring.place_of_tb(tb),
                     say("receives from gpu ", block.recv_peer, " on channel ", block.channel,
                         ", where no threadblock of gpu ", block.recv_peer, " sends to gpu ", rank));
    }
  }
}

void match(Wiring& wiring, Findings& findings) {
  for (std::size_t connection = 0; connection < wiring.connection_sender.size(); ++connection) {
    const std::int32_t sender = wiring.connection_sender[connection];
    const std::int32_t receiver = wiring.connection_receiver[connection];
    std::int32_t send = wiring.first_step[sender];
    std::int32_t recv = wiring.first_step[receiver];
    const std::int32_t last_send = wiring.first_step[sender + 1];
    const std::int32_t last_recv = wiring.first_step[receiver + 1];
    for (std::int64_t k = 0;; ++k, ++send, ++recv) {
      while (send < last_send && !op_traits(wiring.steps[send]->op).sends) ++send;
      while (recv < last_recv && !op_traits(wiring.steps[recv]->op).receives) ++recv;
      if (send == last_send && recv == last_recv) break;
      if (recv == last_recv) {
        findings.error("unmatched", wiring.place_of(send),
                       say("sends message ", k, " to ", wiring.name_of_tb(receiver), ", which receives only ", k));
        break;
      }
      if (send == last_send) {
        findings.error("unmatched", wiring.place_of(recv),
                       say("receives message ", k, " from ", wiring.name_of_tb(sender), ", which sends only ", k));
        break;
      }
      const std::int64_t sent = wiring.steps[send]->count;
      const std::int64_t received = wiring.steps[recv]->count;
      if (sent != received) {
        findings.error("count-mismatch", wiring.place_of(recv),
                       say("receives ", received, " chunks as message ", k, ", but ", wiring.name_of(send), " sends ",
                           sent, "; the cnt of both must agree"));
        break;
      }
      wiring.sender_of[recv] = send;
      wiring.receiver_of[send] = recv;
    }
  }
}

}  // namespace teccl
