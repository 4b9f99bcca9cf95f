// A session on the plan device: the same work, to find out what memory it takes.
#include <algorithm>

#include "session/session.h"
#include "session/stage_loader.h"

namespace jackscrew {

Traffic Session::rehearse_work() {
  // The worst case: one sequence that fills the micro-batch, with every token a target.
  MicroBatch batch;
  const auto tokens = static_cast<size_t>(use_.tokens);
  batch.ids.assign(tokens, 0);
  batch.positions.assign(tokens, 0);
  batch.targets.assign(tokens, 0);
  batch.cu_seqlens = {0, narrow<int32_t>(use_.tokens)};
  batch.target_count = use_.tokens;
  StepBatch step{{}, use_.tokens, use_.tokens, 0};
  step.micro_batches.assign(static_cast<size_t>(use_.place.layout.lanes), batch);
  Traffic sent;
  if (use_.training) {
    const Traffic before = peers_.sent();
    accumulate(step, 0.0, 0);
    update({});
    sent = {peers_.sent().stream - before.stream, peers_.sent().gradient - before.gradient};
    non_finite_parameter();
    for (const auto& parameter : stage_->parameters()) {  // the result
      const Weight& weight = *parameter->weight;
      const int64_t rows =
          std::min(weight.rows(), panel_rows(weight.cols(), dtype_size(DType::f32)));
      read_weight(weight, 0, rows, Tensor(nullptr, DType::f32, {rows, weight.cols()}));
    }
  }
  if (use_.training || use_.logits_rows == 0) losses(step);
  if (use_.logits_rows > 0) {
    const auto ids =
        std::span<const int32_t>(batch.ids).first(static_cast<size_t>(tokens_at_once()));
    logits(ids, use_.logits_rows, false);
    if (logits_->kv_tokens() > 0) {
      keep_cached(0);
      const int64_t cached = std::min(std::ssize(ids), logits_->kv_tokens() - virtual_tokens());
      logits(ids.first(static_cast<size_t>(cached)), std::min(cached, use_.logits_rows), true);
      logits_->fill_cache();
      logits(ids.first(1), 1, true);
    }
  }
  return sent;
}

SessionPlan Session::rehearse(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                              bool recompute) {
  SessionPlan plan;
  plan.recompute = recompute;
  {
    Session measuring(recipe, files, use, plan, SessionMode::measure);
    plan.sent = measuring.rehearse_work();
    for (int64_t i = 0; use.training && i < measuring.learner_->rehearsal_cases(); ++i) {
      Context run = measuring.device_.context(true);
      const bool may_be_of_a_step = measuring.learner_->enter_rehearsal_case(run, i);
      measuring.step_->watch_gradients();
      const Traffic sent = measuring.rehearse_work();
      if (may_be_of_a_step) plan.sent.gradient = std::max(plan.sent.gradient, sent.gradient);
    }
    plan.sent.stream = checked_mul(plan.sent.stream, recipe.gradient_accumulation_steps);
    plan.arenas = {.scratch = measuring.device_.scratch().high_water(),
                   .stash = measuring.passes_->single().buffers.stash_bytes(),
                   .staging = measuring.staging_bytes_,
                   .gradients = measuring.shared_gradients_.high_water(),
                   .kv_cache = measuring.logits_ ? measuring.logits_->cache_bytes() : 0};
  }
  Session booked(recipe, files, use, plan, SessionMode::book);
  for (const auto& parameter : booked.stage_->parameters()) {
    plan.weight_bytes += parameter->weight->storage().bytes.bytes();
  }
  plan.mapped_bytes = mapped_bytes(*booked.stage_);
  if (use.training) {
    plan.gradients = booked.step_->gradients();
    plan.updates_tied = booked.step_->updates_tied();
    plan.decomposition_bytes = booked.learner_->decomposition_bytes();
  }
  booked.rehearse_work();
  plan.ledger = booked.memory().ledger();
  plan.host = booked.host_ledger();
  plan.disk = booked.disk_ledger();
  return plan;
}

std::unique_ptr<Session> Session::planned(const Recipe& recipe, const ModelFiles& files,
                                          const SessionUse& use) {
  return std::unique_ptr<Session>(new Session(recipe, files, use, {}, SessionMode::measure));
}

SessionPlan Session::rehearse(const Recipe& recipe, const ModelFiles& files,
                              const SessionUse& use) {
  if (recipe.gradient_checkpointing) {
    return rehearse(recipe, files, use, *recipe.gradient_checkpointing);
  }
  const SessionPlan kept = rehearse(recipe, files, use, false);
  const int64_t budget = recipe.device_memory.value_or(0);
  if (!use.training || budget == 0 || kept.ledger.peak <= budget) return kept;
  return rehearse(recipe, files, use, true);
}

}  // namespace jackscrew
