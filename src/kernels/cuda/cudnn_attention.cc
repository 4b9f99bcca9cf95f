#include "kernels/cuda/cudnn_attention.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB  // graphs are not stored: a third of this file's build
#include <cudnn_frontend.h>

#include <map>
#include <tuple>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "kernels/cuda/shared_library.h"

namespace cudnn_frontend {

// The library that the frontend calls; open_cudnn() sets it.
void* cudnn_dlhandle = nullptr;

}  // namespace cudnn_frontend

namespace jackscrew::cuda {

namespace {

namespace fe = cudnn_frontend;
using TensorPointer = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr int kMajor = 9;
// The first version whose attention takes cu_seqlens, and offsets of sequences in rows.
constexpr size_t kLowest = 92400;
static_assert(CUDNN_VERSION >= kLowest, "script/setup --cuda brings newer headers");

constexpr const char* kHint =
    "what was saved is intact: resume from the last checkpoint, or set attention=own";

void check(fe::error_t status, const char* what) {
  if (status.is_good()) return;
  throw Error(ErrorKind::device, fmt::format("cuDNN: {} failed: {}", what, status.get_message()),
              kHint);
}

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(ErrorKind::device,
              fmt::format("cuDNN: {} failed: {}", what, fe::detail::get_error_string(status)),
              kHint);
}

enum Uid : int64_t { kCuSeqlens = 1, kQ, kK, kV, kOut, kLse };

// The arguments that a graph depends on.
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float, int64_t,
                       int64_t, int64_t, int64_t>;

Key key_of(const AttentionArguments<bf16>& args) {
  return {args.sequences, args.tokens_q, args.num_heads, args.num_kv_heads,
          args.head_dim,  args.window,   args.scale,     args.q_stride,
          args.k_stride,  args.v_stride, args.out_stride};
}

// Describes attention over packed sequences, of which each may be as long as all tokens together.
class Description {
 public:
  Description(const AttentionArguments<bf16>& args, int32_t level) : args_(args) {
    // Otherwise nodes of the graph look for a GPU, through a libcudart that may not be there.
    graph_.set_sm_version(level);
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    cu_seqlens_ = graph_.tensor(fe::graph::Tensor_attributes()
                                    .set_uid(kCuSeqlens)
                                    .set_data_type(fe::DataType_t::INT32)
                                    .set_dim({args.sequences + 1, 1, 1, 1})
                                    .set_stride({1, 1, 1, 1}));
    auto options = fe::graph::SDPA_attributes()
                       .set_attn_scale(args.scale)
                       .set_generate_stats(true)
                       .set_padding_mask(true)
                       .set_cu_seq_len_q(cu_seqlens_)
                       .set_cu_seq_len_kv(cu_seqlens_)
                       .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                       .set_diagonal_band_right_bound(0);
    // Keys from this distance on are not seen.
    if (args.window > 0 && args.window < args.tokens_q) {
      options.set_diagonal_band_left_bound(narrow<int>(args.window));
    }
    const auto [out, lse] = graph_.sdpa(input(kQ, args.num_heads, args.q_stride),
                                        input(kK, args.num_kv_heads, args.k_stride),
                                        input(kV, args.num_kv_heads, args.v_stride), options);
    set_rows(*out, kOut, args.num_heads, args.out_stride);
    out->set_output(true);
    // [num_heads, tokens]
    lse->set_output(true)
        .set_uid(kLse)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({args.sequences, args.num_heads, args.tokens_q, 1})
        .set_stride({args.tokens_q, args.tokens_q, 1, 1})
        .set_ragged_offset(cu_seqlens_);
  }

  fe::graph::Graph take() { return std::move(graph_); }

 private:
  TensorPointer input(Uid uid, int64_t heads, int64_t stride) {
    fe::graph::Tensor_attributes tensor;
    set_rows(tensor, uid, heads, stride);
    return graph_.tensor(tensor);
  }
  // [tokens, heads * head_dim]; sequence i begins at row cu_seqlens[i].
  void set_rows(fe::graph::Tensor_attributes& tensor, Uid uid, int64_t heads, int64_t stride) {
    tensor.set_uid(uid)
        .set_dim({args_.sequences, heads, args_.tokens_q, args_.head_dim})
        .set_stride({args_.tokens_q * stride, args_.head_dim, stride, 1})
        .set_ragged_offset(cu_seqlens_)
        .set_ragged_offset_multiplier(stride);
  }

  const AttentionArguments<bf16>& args_;
  fe::graph::Graph graph_;
  TensorPointer cu_seqlens_;
};

class PlannedAttention : public CudnnAttention {
 public:
  PlannedAttention(const CudnnLibrary& library, const std::string& level, int64_t workspace_bytes,
                   const std::string& described)
      : library_(library), level_(std::stoi(level.substr(3))), workspace_bytes_(workspace_bytes) {
    if (described.empty()) {
      check(fe::detail::create_handle(&handle_), "starting it");
      return;
    }
    described_ = std::make_shared<fe::DeviceProperties>();
    check(described_->deserialize({described.begin(), described.end()}), "describing a GPU");
  }
  ~PlannedAttention() override {
    graphs_.clear();
    if (handle_ != nullptr) fe::detail::destroy_handle(handle_);
  }

  void plan(const AttentionArguments<bf16>& args) override { graph(args); }

  void forward(const AttentionArguments<bf16>& args, void* workspace, void* stream) override {
    const auto address = [](const void* data) { return const_cast<void*>(data); };
    std::unordered_map<int64_t, void*> tensors = {{kCuSeqlens, address(args.cu_seqlens_q)},
                                                  {kQ, address(args.q)},
                                                  {kK, address(args.k)},
                                                  {kV, address(args.v)},
                                                  {kOut, args.out},
                                                  {kLse, args.lse}};
    fe::graph::Graph& planned = graph(args);
    check(fe::detail::set_stream(handle_, static_cast<cudaStream_t>(stream)), "setting a stream");
    check(planned.execute(handle_, tensors, workspace), "attention");
  }

  size_t known() const override { return graphs_.size(); }
  void forget() override { graphs_.clear(); }

 private:
  fe::graph::Graph& graph(const AttentionArguments<bf16>& args) {
    const Key key = key_of(args);
    auto known = graphs_.find(key);
    if (known == graphs_.end()) known = graphs_.emplace(key, planned(args)).first;
    return known->second;
  }

  fe::graph::Graph planned(const AttentionArguments<bf16>& args) const {
    fe::graph::Graph out = Description(args, level_).take();
    if (described_ != nullptr) out.set_device_properties(described_);
    const auto refuse = [&](fe::error_t status) {
      if (status.is_good()) return;
      throw Error(ErrorKind::device,
                  fmt::format("cuDNN {} has no attention on sm_{} for {} heads of {} over {} "
                              "tokens: {}",
                              version_text(library_.version), level_, args.num_heads, args.head_dim,
                              args.tokens_q, status.get_message()),
                  "set attention=own");
    };
    refuse(out.validate());
    refuse(out.build_operation_graph(handle_));
    refuse(out.create_execution_plans({fe::HeurMode_t::A}));
    refuse(out.check_support());
    refuse(out.build_plans());
    if (const int64_t wanted = out.get_workspace_size(); wanted > workspace_bytes_) {
      throw Error(ErrorKind::device,
                  fmt::format("cuDNN's attention takes {} of workspace, and there are {}",
                              human_bytes(wanted), human_bytes(workspace_bytes_)),
                  "set attention=own");
    }
    return out;
  }

  const CudnnLibrary& library_;
  int32_t level_;  // 90 for sm_90
  int64_t workspace_bytes_;
  cudnnHandle_t handle_ = nullptr;  // null where the GPU is only described
  std::shared_ptr<fe::DeviceProperties> described_;
  std::map<Key, fe::graph::Graph> graphs_;
};

CudnnLibrary search(const std::vector<fs::path>& environments) {
  const SharedLibrary library(
      {"cuDNN", "libcudnn.so", kMajor, fmt::format("nvidia-cudnn-cu{}", CUDART_VERSION / 1000)},
      environments);
  fe::cudnn_dlhandle = library.handle();
  decltype(::cudnnGetVersion)* version = nullptr;
  library.find("cudnnGetVersion", version);
  CudnnLibrary out{library.path(reinterpret_cast<const void*>(version)), version()};
  if (out.version < kLowest) {
    throw Error(ErrorKind::device,
                fmt::format("cuDNN {} or newer is wanted, {} is {}", version_text(kLowest),
                            out.path, version_text(out.version)),
                "update it, or set attention=own");
  }
  return out;
}

}  // namespace

const CudnnLibrary& open_cudnn(const std::vector<fs::path>& environments) {
  static const CudnnLibrary kLibrary = search(environments);
  return kLibrary;
}

std::unique_ptr<CudnnAttention> make_cudnn_attention(const CudnnLibrary& library,
                                                     const std::string& level,
                                                     int64_t workspace_bytes,
                                                     const std::string& described) {
  return std::make_unique<PlannedAttention>(library, level, workspace_bytes, described);
}

}  // namespace jackscrew::cuda
