// Adapter directories of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "formats/safetensors.h"

namespace jackscrew {

inline constexpr const char* kAdapterConfig = "adapter_config.json";

// The LoRA settings that this program computes; everything else in the file must be at its default.
struct PeftConfig {
  std::string peft_type = "LORA";
  int64_t r = 0;            // rank
  double lora_alpha = 0.0;  // the update is scaled by lora_alpha / r, or / sqrt(r) with use_rslora
  double lora_dropout = 0.0;
  bool use_rslora = false;
  std::vector<std::string> target_modules;  // sorted: "q_proj" ...; as read, those of the tensors
  std::string base_model_name_or_path;      // empty: unknown
  std::string task_type = "CAUSAL_LM";
};

struct NamedArray {
  // The name on disk less "base_model.model.":
  // "model.layers.0.self_attn.q_proj.lora_A.weight" [r, in], "....lora_B.weight" [out, r].
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

struct PeftAdapter {
  PeftConfig config;
  std::vector<NamedArray> tensors;  // sorted by name; for every A its B and the other way round
};

// Reads an adapter directory; f16 and bf16 become f32. Error(model) names the file and what is
// damaged or not supported: another method than LoRA, DoRA, biases, modules_to_save, ranks per
// module ...
PeftAdapter read_peft_adapter(const fs::path& directory);

// The model that an adapter directory says it belongs to; empty where it says nothing, or nothing
// that can be read.
std::string peft_base_model(const fs::path& directory);

struct NamedShape {
  std::string name;  // as in NamedArray
  std::vector<int64_t> shape;
};

// The bytes of all files that PeftWriter makes of these.
int64_t peft_bytes(const PeftConfig& config, const std::vector<NamedShape>& tensors);

// Writes an adapter directory in one pass, so that the caller need not hold a copy of the tensors.
// Nothing stands at `directory` before commit(); a writer destroyed without it leaves no trace.
// Misuse and a failing disk are Error(generic).
class PeftWriter {
 public:
  // `tensors` in the order in which they will be written; stored as f32.
  PeftWriter(const fs::path& directory, const PeftConfig& config,
             const std::vector<NamedShape>& tensors);

  // All values of `name`, or the next of them.
  void write(std::string_view name, std::span<const float> values);
  // Where further files of the adapter can be put before commit().
  const fs::path& path() const { return directory_.path(); }
  // Replaces whatever stands at the final path.
  void commit();

 private:
  AtomicDirectory directory_;
  std::unique_ptr<SafetensorsWriter> writer_;
};

}  // namespace jackscrew
