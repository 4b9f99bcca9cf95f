// Adapter directories of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors.
// What is particular to one peft_type is in a file of its own (peft_lora.cc), with a row in the
// table of peft.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/options.h"
#include "formats/json_text.h"
#include "formats/safetensors.h"
#include "tensor/tensor.h"

namespace jackscrew {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kPeftWeightsFile = "adapter_model.safetensors";
// The prefix, on disk, of the names of tensors that stand beside the model's.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

// A tensor of an adapter, in the file that the adapter has mapped.
struct PeftTensor {
  // The name on disk without the prefix of its peft_type:
  // "model.layers.0.self_attn.q_proj.lora_A.weight" [r, in], "....lora_B.weight" [out, r].
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::f32;  // or bf16, f16
  std::span<const uint8_t> bytes;

  int64_t size() const;
  // The values from `begin` to `end`. Throws Error(model) where the file was truncated meanwhile.
  std::vector<float> values(int64_t begin, int64_t end) const;
  std::vector<float> values() const { return values(0, size()); }
  // Passes all values to `use`, with where each part begins: 1 MiB of them is in memory at a time.
  void for_parts(const std::function<void(int64_t begin, std::span<const float>)>& use) const;
};

// An option of a learner with the value that an adapter was made with.
struct AdapterOption {
  std::string name;
  std::string value = {};
  std::vector<std::string> items = {};  // of a list, in place of the value
  // Values of a recipe that do not contradict this one: "auto", "all-linear", and whatever else
  // accepts(value, its options) says, if given.
  std::vector<std::string> accepted_instead = {};
  std::function<bool(const std::string& value, const OptionSet& recipe)> accepts = {};
  bool accepts_any = false;    // no value contradicts it: it says how an adapter begins
  bool training_only = false;  // the recipe's own value takes precedence over the adapter's
};

struct PeftAdapter {
  std::string peft_type;                // "LORA"
  std::string base_model_name_or_path;  // empty: unknown
  // The settings of its type in adapter_config.json, by PEFT's names, in the order for display.
  nlohmann::ordered_json settings;
  std::string learner;                 // which learner makes such adapters
  std::vector<AdapterOption> options;  // its options for this one
  // The embedding or the head was trained by itself, so the adapter does not fit a tied model.
  bool unties_embedding = false;
  // The head of an adapter whose embedding is the same: `tensors` lack it, for over a tied model it
  // is the embedding. Over an untied one PEFT puts it in place of the model's.
  std::optional<PeftTensor> repeated_head;
  std::string unplaceable_tensor;  // a tensor that fits no supported module; empty: none
  // The storage whose rounding the factors make up for (kBaseStorage of base/shared_names.h), of
  // the metadata of adapter_model.safetensors; empty: none.
  std::string base_storage;
  // How adapter_config.json contradicts the tensors, which count here, over a model of so many
  // layers; empty: it does not.
  std::function<std::string(int64_t layers)> contradiction = [](int64_t) { return std::string(); };
  // The setting by which PEFT would train less of the adapter; empty: none.
  std::string trains_in_part;
  std::shared_ptr<const SafetensorsFile> file;
  std::vector<PeftTensor> tensors;  // sorted by name; complete for what the adapter is
};

// Opens an adapter directory; its values are read when they are asked for. Throws Error(model)
// naming the file and what is damaged or not supported.
PeftAdapter read_peft_adapter(const fs::path& directory);

// The base model that an adapter directory names; empty where it names none or cannot be read.
std::string peft_base_model(const fs::path& directory);

// How adapters of one peft_type are read.
struct PeftType {
  const char* name;
  const char* learner;
  std::string_view prefix;  // of every tensor's name on disk
  // Fills adapter.settings from the members of adapter_config.json; `in_order` has them in the
  // file's order. This and read_tensors() throw Error(model) beginning with the file's name for
  // what is not supported.
  void (*read_settings)(const JsonFields& fields, const nlohmann::ordered_json& in_order,
                        PeftAdapter& adapter);
  // Checks adapter.tensors against the settings, completes these from the tensors, and sets
  // adapter.options and adapter.unplaceable_tensor.
  void (*read_tensors)(const std::string& where, PeftAdapter& adapter);
};

// The names under which a directory holds a tensor: PEFT wants a tied embedding
// (ensure_weight_tying) twice, as embedding and as head. `config` is as for PeftWriter.
std::vector<std::string> stored_names(const nlohmann::json& config, const std::string& name);

struct NamedShape {
  std::string name;  // as in PeftTensor
  std::vector<int64_t> shape;
};

// The bytes of all files that PeftWriter writes for these.
int64_t peft_bytes(const nlohmann::json& config, const std::string& base_model,
                   const std::vector<NamedShape>& tensors);

// Writes an adapter directory in one pass, so that the caller need not hold a copy of the tensors.
// Nothing appears at `directory` before commit(); a writer destroyed without it leaves no trace.
// Misuse and a failing disk are Error(generic).
class PeftWriter {
 public:
  // `config`: what is particular to the adapter, as Learner::adapter() returns it; of it,
  // kBaseStorage goes to the metadata of adapter_model.safetensors. `base_model` is recorded as its
  // base model. `tensors` are in the order in which they will be written, and stored as f32.
  PeftWriter(const fs::path& directory, const nlohmann::json& config, const std::string& base_model,
             const std::vector<NamedShape>& tensors);

  // Appends all values of `name`, or the next chunk of them.
  void write(std::string_view name, std::span<const float> values);
  // The directory in which further files of the adapter can be put before commit().
  const fs::path& path() const { return directory_.path(); }
  // Replaces whatever stands at the final path.
  void commit();

 private:
  AtomicDirectory directory_;
  std::string prefix_;
  std::unique_ptr<SafetensorsWriter> writer_;
};

}  // namespace jackscrew
