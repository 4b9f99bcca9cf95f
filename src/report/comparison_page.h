// What `compare` found, as a page: a table, and charts of what is lost by size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace jackscrew {

// How far a model is from the first one that it is compared with.
struct ComparedModel {
  std::string name;
  int64_t bytes = 0;      // of its weights, as they are stored
  double loss = 0;        // nats a token
  double divergence = 0;  // KL(first || it), nats a token
  double agreement = 1;   // the share of tokens for which both find the same one likeliest
  double rate = 0;        // tokens a second
};

// `text` names what was scored; `tokens` of it count. The first model is the reference.
std::string render_comparison(const std::vector<ComparedModel>& models, const std::string& text,
                              int64_t tokens);

}  // namespace jackscrew
