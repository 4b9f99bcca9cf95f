// What the kernels should compute, written plainly in double precision. Forward passes follow the
// papers' formulas; gradients come from central differences of these, never from a second
// derivation.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace jackscrew::reference {

using Doubles = std::vector<double>;

inline size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The gradient of a scalar function by central differences. The step balances the truncation error
// (h^2, 1e-10) against rounding (2^-53 / h, 1e-11): far below the 1e-6 that kernels are held to.
template <class Function>
Doubles gradient(Doubles x, const Function& f) {
  constexpr double kStep = 1e-5;
  Doubles out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + kStep;
    const double above = f(x);
    x[i] = kept - kStep;
    const double below = f(x);
    x[i] = kept;
    out[i] = (above - below) / (2.0 * kStep);
  }
  return out;
}

// c [m, n] = op(a) · op(b); a is [k, m] when transposed, b is [n, k].
inline Doubles gemm(int64_t m, int64_t n, int64_t k, const Doubles& a, bool transpose_a,
                    const Doubles& b, bool transpose_b) {
  Doubles wide(at(k * n));  // b as [k, n]: the inner loop runs along rows
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t j = 0; j < n; ++j)
      wide[at(p * n + j)] = b[at(transpose_b ? j * k + p : p * n + j)];
  }
  Doubles c(at(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i) {
    double* row = c.data() + i * n;
    for (int64_t p = 0; p < k; ++p) {
      const double factor = a[at(transpose_a ? p * m + i : i * k + p)];
      const double* from = wide.data() + p * n;
      for (int64_t j = 0; j < n; ++j) row[j] += factor * from[j];
    }
  }
  return c;
}

inline Doubles rms_norm(const Doubles& x, const Doubles& weight, double epsilon,
                        Doubles* rstd = nullptr) {
  const size_t hidden = weight.size();
  Doubles y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += hidden) {
    double squares = 0.0;
    for (size_t i = 0; i < hidden; ++i) squares += x[begin + i] * x[begin + i];
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(hidden) + epsilon);
    if (rstd != nullptr) rstd->push_back(scale);
    for (size_t i = 0; i < hidden; ++i) y[begin + i] = x[begin + i] * scale * weight[i];
  }
  return y;
}

// x [tokens, heads * head_dim]; cosine and sine [positions, head_dim / 2].
inline Doubles rotary(const Doubles& x, const std::vector<int32_t>& positions,
                      const Doubles& cosine, const Doubles& sine, int64_t heads, int64_t head_dim) {
  Doubles y(x.size());
  const int64_t half = head_dim / 2;
  for (size_t token = 0; token < positions.size(); ++token) {
    for (int64_t head = 0; head < heads; ++head) {
      const size_t begin = token * at(heads * head_dim) + at(head * head_dim);
      for (size_t i = 0; i < at(half); ++i) {
        const size_t low = begin + i;
        const size_t high = low + at(half);
        const double c = cosine[at(positions[token]) * at(half) + i];
        const double s = sine[at(positions[token]) * at(half) + i];
        y[low] = x[low] * c - x[high] * s;
        y[high] = x[high] * c + x[low] * s;
      }
    }
  }
  return y;
}

inline Doubles swiglu(const Doubles& gate, const Doubles& up) {
  Doubles h(gate.size());
  for (size_t i = 0; i < h.size(); ++i) h[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  return h;
}

// Of each row of logits [targets, vocab].
inline Doubles cross_entropy(const Doubles& logits, const std::vector<int32_t>& targets) {
  const size_t vocab = logits.size() / targets.size();
  Doubles losses;
  for (size_t row = 0; row < targets.size(); ++row) {
    const double* x = logits.data() + row * vocab;
    double maximum = x[0];
    for (size_t i = 1; i < vocab; ++i) maximum = std::fmax(maximum, x[i]);
    double total = 0.0;
    for (size_t i = 0; i < vocab; ++i) total += std::exp(x[i] - maximum);
    losses.push_back(maximum + std::log(total) - x[at(targets[row])]);
  }
  return losses;
}

// Causal attention over packed sequences; see AttentionShape.
struct Attention {
  std::vector<int32_t> cu_q, cu_k;
  int64_t heads = 1, kv_heads = 1, head_dim = 1;
  double scale = 1.0;
  int64_t window = 0;  // see AttentionShape

  int64_t tokens_q() const { return cu_q.back(); }
  int64_t tokens_k() const { return cu_k.back(); }

  // body(query token, query head, kv head, first key token, number of visible keys)
  template <class Body>
  void each_row(const Body& body) const {
    for (size_t s = 0; s + 1 < cu_q.size(); ++s) {
      const int64_t hidden_keys = (cu_k[s + 1] - cu_k[s]) - (cu_q[s + 1] - cu_q[s]);
      for (int64_t i = 0; i < cu_q[s + 1] - cu_q[s]; ++i) {
        const int64_t end = hidden_keys + i + 1;
        const int64_t begin = window > 0 && end > window ? end - window : 0;
        for (int64_t head = 0; head < heads; ++head) {
          body(cu_q[s] + i, head, head / (heads / kv_heads), cu_k[s] + begin, end - begin);
        }
      }
    }
  }

  // The softmax weights of one row of scores; `lse` receives their log-sum-exp.
  Doubles weights(const Doubles& q, const Doubles& k, int64_t token, int64_t head, int64_t kv_head,
                  int64_t first, int64_t visible, double* lse) const {
    Doubles p(at(visible));
    double maximum = -1e300;
    for (int64_t j = 0; j < visible; ++j) {
      double score = 0.0;
      for (int64_t c = 0; c < head_dim; ++c) {
        score += q[at((token * heads + head) * head_dim + c)] *
                 k[at(((first + j) * kv_heads + kv_head) * head_dim + c)];
      }
      p[at(j)] = score * scale;
      maximum = std::fmax(maximum, p[at(j)]);
    }
    double total = 0.0;
    for (double& value : p) total += value = std::exp(value - maximum);
    for (double& value : p) value /= total;
    *lse = maximum + std::log(total);
    return p;
  }

  Doubles forward(const Doubles& q, const Doubles& k, const Doubles& v,
                  Doubles* lse = nullptr) const {
    Doubles out(q.size(), 0.0);
    if (lse != nullptr) lse->assign(at(heads * tokens_q()), 0.0);
    each_row([&](int64_t token, int64_t head, int64_t kv_head, int64_t first, int64_t visible) {
      double row_lse = 0.0;
      const Doubles p = weights(q, k, token, head, kv_head, first, visible, &row_lse);
      if (lse != nullptr) (*lse)[at(head * tokens_q() + token)] = row_lse;
      for (int64_t j = 0; j < visible; ++j) {
        for (int64_t c = 0; c < head_dim; ++c) {
          out[at((token * heads + head) * head_dim + c)] +=
              p[at(j)] * v[at(((first + j) * kv_heads + kv_head) * head_dim + c)];
        }
      }
    });
    return out;
  }

  // The derivative formulas, for sizes at which differences take too long; held against differences
  // of forward() in their own test.
  void backward(const Doubles& q, const Doubles& k, const Doubles& v, const Doubles& dout,
                Doubles* dq, Doubles* dk, Doubles* dv) const {
    dq->assign(q.size(), 0.0);
    dk->assign(k.size(), 0.0);
    dv->assign(v.size(), 0.0);
    each_row([&](int64_t token, int64_t head, int64_t kv_head, int64_t first, int64_t visible) {
      double lse = 0.0;
      const Doubles p = weights(q, k, token, head, kv_head, first, visible, &lse);
      const size_t query = at((token * heads + head) * head_dim);
      Doubles dp(at(visible), 0.0);
      double mean = 0.0;
      for (int64_t j = 0; j < visible; ++j) {
        const size_t key = at(((first + j) * kv_heads + kv_head) * head_dim);
        for (size_t c = 0; c < at(head_dim); ++c) {
          dp[at(j)] += dout[query + c] * v[key + c];
          (*dv)[key + c] += p[at(j)] * dout[query + c];
        }
        mean += p[at(j)] * dp[at(j)];
      }
      for (int64_t j = 0; j < visible; ++j) {
        const size_t key = at(((first + j) * kv_heads + kv_head) * head_dim);
        const double ds = p[at(j)] * (dp[at(j)] - mean) * scale;
        for (size_t c = 0; c < at(head_dim); ++c) {
          (*dq)[query + c] += ds * k[key + c];
          (*dk)[key + c] += ds * q[query + c];
        }
      }
    });
  }
};

}  // namespace jackscrew::reference
