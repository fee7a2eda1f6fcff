// Online softmax in C++: one query (d), keys (S, d) and values (S, dv), in float32.
// flashkit/online.py is the original; online.rs says the same in Rust, bit for bit.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

using Row = std::span<const float>;

struct Matrix {
    const float* data;
    size_t columns;
    Row operator[](size_t i) const { return {data + i * columns, columns}; }
};

// The softmax of the keys seen so far. At first: nothing seen.
struct State {
    float m = -INFINITY;   // the largest score
    float l = 0;           // the sum of exp(score - m)
    std::vector<float> a;  // the sum of exp(score - m) * value, not yet divided by l
};

// std::max would lose a NaN.
static float larger(float x, float y) { return x >= y || std::isnan(x) ? x : y; }

// Add a tile: its scores, and the values of its keys, which begin at `start`.
static void update(State& state, const std::vector<float>& scores, Matrix values, size_t start) {
    const float m = std::accumulate(scores.begin(), scores.end(), state.m, larger);
    const float reference = m == -INFINITY ? 0 : m;  // nothing yet: -inf - -inf would be NaN
    const float alpha = std::exp(state.m - reference);  // from the old maximum to the new

    std::vector<float> p;
    for (float score : scores) p.push_back(std::exp(score - reference));
    state.m = m;
    state.l = alpha * state.l + std::accumulate(p.begin(), p.end(), 0.0f);
    for (size_t e = 0; e < values.columns; ++e) {
        float sum = 0;
        for (size_t j = 0; j < p.size(); ++j)
            if (scores[j] != -INFINITY)  // a hidden value never matters, even NaN
                sum += p[j] * values[start + j][e];
        state.a[e] = alpha * state.a[e] + sum;
    }
}

// o (dv) is the result; m, l (tiles) and a (tiles, dv) are the state after each tile.
extern "C" void online_attention(const float* q, const float* k, const float* v, size_t S, size_t d,
                                 size_t dv, size_t tile, float* o, float* m, float* l, float* a) {
    const Row query{q, d};
    const Matrix keys{k, d}, values{v, dv};
    const float scale = 1 / std::sqrt(static_cast<float>(d));

    State state;
    state.a.resize(dv);
    for (size_t start = 0; start < S; start += tile) {
        std::vector<float> scores;
        for (size_t j = start; j < S && j < start + tile; ++j)
            scores.push_back(
                std::inner_product(query.begin(), query.end(), keys[j].begin(), 0.0f) * scale);
        update(state, scores, values, start);

        *m++ = state.m;
        *l++ = state.l;
        a = std::copy(state.a.begin(), state.a.end(), a);
    }
    for (size_t e = 0; e < dv; ++e) o[e] = state.a[e] / state.l;
}
