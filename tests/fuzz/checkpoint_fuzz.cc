// checkpoint.json and, behind a zero byte, state.safetensors: as they are, and with a
// checkpoint.json whose size and checksum are right, as nothing else gets past them.
#include "formats/checkpoint.h"

#include <algorithm>
#include <array>

#include "base/crc32c.h"
#include "kernels/plan/plan_ops.h"
#include "tests/fuzz/fuzz.h"

namespace jackscrew {
namespace {

// Copies nothing, so that no tensor of the run needs memory.
class NoOps : public PlanOps {
 public:
  NoOps() : PlanOps(1, IsaLevel::v3) {}
  bool has_bf16() const override { return false; }
  void gemm_int8(const Int8Rows&, const Int8Rows&, Transpose, const Tensor&, Accumulate,
                 Arena&) override {}
  int32_t int8_limit() const override { return 127; }
  void attention_forward(const AttentionShape&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&, Arena&) override {}
  void attention_backward(const AttentionShape&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, Arena&) override {}
};

void restore() {
  accepts([] { read_checkpoint_info(directory()); });
  accepts([] {
    std::array<float, 8> values{};
    std::array<uint8_t, 4> active{};
    const StateSource states = [&](const StateVisitor& visit) {
      visit({"active", StateRole::learner, Tensor(active.data(), DType::u8, {4}), true});
      visit({"w", StateRole::parameter, Tensor(values.data(), DType::f32, {2, 4}), true});
    };
    NoOps ops;
    restore_checkpoint(
        directory(), states, [] {}, ops);
  });
}

}  // namespace

void parse_input(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const std::string_view state = bytes.substr(std::min(end + 1, bytes.size()));
  write_file("state.safetensors", state);
  write_file("checkpoint.json", bytes.substr(0, end));
  restore();
  const uint32_t crc = crc32c({reinterpret_cast<const uint8_t*>(state.data()), state.size()});
  write_file("checkpoint.json", fmt::format(R"({{"format":1,"step":2,"version":"0","isa":"",)"
                                            R"("product":"","state_bytes":{},"state_crc32c":{}}})",
                                            state.size(), crc));
  restore();
}

}  // namespace jackscrew
