// The programs of a machine as `store env --runtime nccl` writes them: rounds of local acts and messages for every
// rank, and which of them serves which sizes. teccl_msccl/store/rounds_file.py writes the file and describes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sha256.hpp"

namespace teccl::nccl {

enum class Collective : std::uint32_t {
  allgather,
  reduce_scatter,
  allreduce,
  alltoall,
  broadcast,
  reduce,
  gather,
  scatter
};
constexpr std::size_t collectives = 8;
extern const char* const collective_names[collectives];
bool is_reducing(Collective collective);
bool has_shared_input(Collective collective);   // all ranks' shares: reduce_scatter, scatter, alltoall
bool has_shared_output(Collective collective);  // allgather, gather, alltoall

enum class Kind : std::uint8_t { copy, reduce, send, receive };
enum class Buffer : std::uint8_t { input, output, scratch, none };

// A place is a number of parts into its buffer. `count` parts of a share are meant, the first being its part `part`.
struct Act {
  Kind kind;
  Buffer at_buffer, source_buffer, other_buffer;
  std::uint32_t part, count, at, source, other;
  std::int32_t peer;
  std::uint32_t unused;
};
static_assert(sizeof(Act) == 32, "as in the file");

// Of a round's acts, the local ones end before `local`, and its messages before `messages`.
struct Round {
  std::uint32_t local, messages;
};

struct RankProgram {
  const Round* rounds;
  const Act* acts;
  std::uint32_t nrounds, nacts;
  std::uint32_t scratch;  // places
  bool writes_input, uses_input, uses_output;
};

struct Program {
  std::string name;
  Collective collective;  // as its entries say
  std::uint32_t parts;    // of a share
  std::uint32_t scratch;  // places, on the rank that needs most
  bool in_place;          // right where input and output lie in one another, too
  bool reduces;
  bool writes_input;  // on some rank
};

// Program `program` serves `collective` of min_bytes ≤ size < max_bytes, as nccl-tests count sizes.
struct Entry {
  std::uint32_t collective;
  std::int32_t root;  // -1 where there is none
  std::uint64_t min_bytes, max_bytes;
  std::uint32_t program, unused;
};
static_assert(sizeof(Entry) == 32, "as in the file");

class Programs {
 public:
  // Throws std::runtime_error with one line for a file that cannot be read or is not what was written.
  explicit Programs(const std::string& path);

  std::uint32_t nranks() const { return nranks_; }
  const Digest& digest() const { return digest_; }
  const std::vector<std::uint32_t>& hosts() const { return hosts_; }  // by rank
  const std::vector<Program>& programs() const { return programs_; }
  const std::vector<Entry>& entries() const { return entries_; }
  bool reduces() const;

  // One rank's part of every program. Throws like the constructor.
  std::vector<RankProgram> of_rank(std::uint32_t rank) const;

 private:
  RankProgram rank_program(std::uint32_t program, std::uint32_t rank) const;
  template <typename T>
  const T* at(std::uint64_t offset, std::uint64_t count) const;
  [[noreturn]] void refuse(const std::string& why) const;

  std::string path_;
  std::vector<std::uint64_t> words_;  // the file, aligned
  std::size_t size_ = 0;
  Digest digest_;
  std::uint32_t nranks_ = 0;
  std::vector<std::uint32_t> hosts_;
  std::vector<Program> programs_;
  std::vector<std::uint64_t> rank_offsets_;  // by program and rank
  std::vector<Entry> entries_;
};

}  // namespace teccl::nccl
