#include "conversion/merged_source.h"

#include <algorithm>

#include "model/weights.h"
#include "quant/plain.h"
#include "report/progress.h"
#include "session/adapter.h"

namespace jackscrew {

namespace {

// The learner that made an adapter, with its settings over a model that is `tied` or not.
std::unique_ptr<Learner> learner_of(Recipe recipe, const std::string& directory, bool tied) {
  recipe.adapters = {directory};
  recipe.adapter = directory;
  recipe = with_head_of_adapter(with_adapter_options(std::move(recipe)), tied);
  return find_learner(recipe.learner).make(recipe.options);
}

int64_t staged_bytes(const WeightSpec& spec, const StoredTensor& stored) {
  return std::max<int64_t>(1, StoredRows::bytes_for(stored, spec.rows, spec.cols));
}

int64_t panel_rows(const WeightSpec& spec) {
  return std::min(spec.rows, encode_panel_rows(spec.cols));
}

// Reads the values of a tensor, a part at a time: beside them is no room for a second copy. Throws
// Error(non_finite) naming the tensor.
void read_values(const PeftTensor& tensor, const std::string& directory, const Tensor& to) {
  tensor.for_parts([&](int64_t begin, std::span<const float> part) {
    require_finite(part, tensor, directory);
    std::ranges::copy(part, to.data<float>() + begin);
  });
}

}  // namespace

MergedSource::MergedSource(const Recipe& recipe, const ModelFiles& base,
                           const std::vector<WeightedAdapter>& adapters, const RoomCheck& check)
    : base_(base),
      tied_(base.config.tie_word_embeddings),
      device_(open_device("cpu", {.threads = recipe.threads, .isa = choose_isa(recipe.isa)})),
      memory_("host", device_->make_backing(), 0),
      ops_(device_->make_ops(memory_)) {
  std::vector<OpenAdapter> open;
  int64_t bytes = 0;
  for (const WeightedAdapter& adapter : adapters) {
    open.push_back({adapter, learner_of(recipe, adapter.directory, tied_),
                    read_adapter_over(adapter.directory, tied_)});
    for (const PeftTensor& tensor : open.back().read.tensors) {
      bytes = checked_add(bytes, booked_bytes(checked_mul(tensor.size(), sizeof(float))));
    }
  }
  if (check) check(bytes, 0);
  values_ = Arena(memory_, Purpose::adapters, bytes);
  std::vector<UnreadValues> unread;
  for (const OpenAdapter& adapter : open) add(adapter, unread);
  if (check) check(most_bytes() - held_bytes(), held_bytes());
  for (const UnreadValues& of : unread) read_values(of.tensor, of.directory, of.to);
  for (auto& [name, merged] : merged_) {
    merged.tensor.name = name;
    merged.tensor.format = unowned(f32_format());
    merged.tensor.shape = {merged.spec.rows, merged.spec.cols};
    merged.tensor.computed = [this, &merged = merged](int64_t begin, int64_t end) {
      return rows(merged, begin, end);
    };
  }
}

void MergedSource::add(const OpenAdapter& adapter, std::vector<UnreadValues>& unread) {
  const auto& [from, learner, read] = adapter;
  const std::string& directory = from.directory;
  const std::string contradiction = read.contradiction(base_.config.num_hidden_layers);
  if (!contradiction.empty()) warn(contradiction);
  const Format* rounds_to = read.base_storage.empty() ? nullptr : &find_format(read.base_storage);
  std::map<std::string, const PeftTensor*> tensors;
  for (const PeftTensor& tensor : read.tensors) tensors[tensor.name] = &tensor;
  const AdapterValues values = [&](const std::string& name,
                                   std::initializer_list<int64_t> shape) -> std::span<const float> {
    const auto found = tensors.find(name);
    if (found == tensors.end()) fail_without(name, directory);
    const PeftTensor& tensor = *found->second;
    require_shape(tensor, shape, directory);
    tensors.erase(found);
    const Tensor to = values_.tensor(DType::f32, {tensor.size()});
    unread.push_back({to, tensor, directory});
    return {to.data<float>(), static_cast<size_t>(to.size())};
  };
  const auto weights = weights_of(base_.config, StageSpec::whole(base_.config));
  require_places(read, weights, directory);
  try {
    learner->plan(weights);
  } catch (const Error& error) {  // a setting of the adapter's selects nothing in this model
    throw Error(ErrorKind::model, fmt::format("{}: {}", directory, error.what()),
                error.hint().empty() ? std::string(kOtherModel) : error.hint());
  }
  for (const WeightSpec& weight : weights) {
    if (WeightMerge merge = learner->merge(weight, values)) {
      Merged& merged = merged_[weight.name];
      merged.spec = weight;
      merged.parts.push_back(
          {std::move(merge), from.weight, weight.is_block_matrix() ? rounds_to : nullptr});
    }
  }
  if (!tensors.empty()) fail_of_place(tensors.begin()->first, directory);
}

const StoredTensor* MergedSource::find(std::string_view name) const {
  if (const auto found = merged_.find(name); found != merged_.end()) return &found->second.tensor;
  // The file has a separate head although it is tied to the embedding: only the embedding was
  // merged.
  if (tied_ && name == "lm_head.weight" && merged_.contains("model.embed_tokens.weight")) {
    return nullptr;
  }
  return base_.source->find(name);
}

void MergedSource::release(const StoredTensor& tensor) const {
  if (!tensor.computed) return base_.source->release(tensor);
  open_.reset();
  panels_ = {};
  if (const StoredTensor* from = base_.source->find(tensor.name)) base_.source->release(*from);
}

const StoredTensor& MergedSource::stored(const WeightSpec& spec) const {
  return checked_tensor(base_, *base_.source, spec);
}

int64_t MergedSource::most_bytes() const {
  int64_t most = 0;
  for (const auto& [name, merged] : merged_) {
    const WeightSpec& spec = merged.spec;
    const Tensor panels(nullptr, DType::f32, {2, panel_rows(spec), spec.cols});
    int64_t bytes = booked_bytes(staged_bytes(spec, stored(spec))) + booked_bytes(panels.bytes());
    if (!merged.is_simple()) bytes += panel_rows(spec) * spec.cols * int64_t{sizeof(double)};
    for (const AdapterMerge& part : merged.parts) {
      if (part.rounds_to == nullptr) continue;
      bytes = checked_add(bytes, booked_bytes(part.rounds_to->storage_bytes(spec.rows, spec.cols)));
      bytes = checked_add(bytes, booked_bytes(staging_to_round(spec, *part.rounds_to)));
    }
    most = std::max(most, bytes);
  }
  return checked_add(held_bytes(), most);
}

int64_t MergedSource::staging_to_round(const WeightSpec& spec, const Format& format) const {
  Memory planned("host", make_plan_backing(), 0);
  const auto ops = device_->make_plan_ops(planned);
  Arena staging = Arena::measuring();
  Weight(planned, spec, format).load(*ops, stored(spec), staging);
  return std::max<int64_t>(1, staging.high_water());
}

void MergedSource::begin(const Merged& merged) const {
  if (open_ != nullptr && open_->merged == &merged) return;
  open_.reset();
  panels_ = {};
  const WeightSpec& spec = merged.spec;
  const StoredTensor& of = stored(spec);
  OwnedTensor bytes(memory_, Purpose::staging, DType::u8, {staged_bytes(spec, of)});
  const StoredRows from(*ops_, of, spec.rows, spec.cols, bytes.view());
  open_ = std::make_unique<OpenWeight>(OpenWeight{&merged, std::move(bytes), from, {}});
  for (const AdapterMerge& part : merged.parts) {
    if (part.rounds_to == nullptr || open_->rounded.contains(part.rounds_to)) continue;
    Arena staging(memory_, Purpose::staging, staging_to_round(spec, *part.rounds_to));
    Weight rounded(memory_, spec, *part.rounds_to);
    rounded.load(*ops_, of, staging);
    open_->rounded.emplace(part.rounds_to, std::move(rounded));
  }
  panels_ = OwnedTensor(memory_, Purpose::staging, DType::f32, {2, panel_rows(spec), spec.cols});
}

void MergedSource::decode(const AdapterMerge& part, int64_t begin, int64_t end,
                          const Tensor& out) const {
  if (part.rounds_to == nullptr) return open_->rows.decode(begin, end, out);
  open_->rounded.at(part.rounds_to).decode(*ops_, begin, end, out);
}

Tensor MergedSource::rows(const Merged& merged, int64_t begin, int64_t end) const {
  this->begin(merged);
  const int64_t count = end - begin;
  const int64_t step = panels_.view().dim(1);
  const Tensor panels = panels_.view().reshaped({2 * step, merged.spec.cols});
  const Tensor out = panels.rows(0, count);
  if (merged.is_simple()) {
    decode(merged.parts[0], begin, end, out);
    merged.parts[0].merge(*ops_, begin, out);
    return out;
  }
  open_->rows.decode(begin, end, out);
  const Tensor one = panels.rows(step, step + count);
  std::vector<double> sum(out.data<float>(), out.data<float>() + out.size());
  for (const AdapterMerge& part : merged.parts) {
    decode(part, begin, end, one);
    part.merge(*ops_, begin, one);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += part.weight * (static_cast<double>(one.data<float>()[i]) -
                               static_cast<double>(out.data<float>()[i]));
    }
  }
  std::transform(sum.begin(), sum.end(), out.data<float>(),
                 [](double value) { return static_cast<float>(value); });
  return out;
}

}  // namespace jackscrew
