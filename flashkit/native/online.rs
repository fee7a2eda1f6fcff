//! Online softmax in Rust: one query (d), keys (S, d) and values (S, dv), in float32.
//! flashkit/online.py is the original; online.cpp says the same in C++, bit for bit.

use std::slice::{from_raw_parts, from_raw_parts_mut};

/// The softmax of the keys seen so far.
struct State {
    m: f32,      // the largest score
    l: f32,      // the sum of exp(score - m)
    a: Vec<f32>, // the sum of exp(score - m) * value, not yet divided by l
}

/// f32::max would lose a NaN.
fn larger(x: f32, y: f32) -> f32 {
    if x >= y || x.is_nan() { x } else { y }
}

impl State {
    fn nothing_seen(dv: usize) -> State {
        State { m: f32::NEG_INFINITY, l: 0.0, a: vec![0.0; dv] }
    }

    /// Add a tile: its scores (N), and the values of its keys (N, dv).
    fn update(&mut self, scores: &[f32], values: &[f32]) {
        let m = scores.iter().copied().fold(self.m, larger);
        let reference = if m == f32::NEG_INFINITY { 0.0 } else { m }; // -inf - -inf would be NaN
        let alpha = (self.m - reference).exp(); // from the old maximum to the new

        let p: Vec<f32> = scores.iter().map(|score| (score - reference).exp()).collect();
        self.m = m;
        self.l = alpha * self.l + p.iter().fold(0.0, |sum, p| sum + p);
        let dv = self.a.len();
        for e in 0..dv {
            let mut sum = 0.0;
            for j in 0..p.len() {
                if scores[j] != f32::NEG_INFINITY { // a hidden value never matters, even NaN
                    sum += p[j] * values[j * dv + e];
                }
            }
            self.a[e] = alpha * self.a[e] + sum;
        }
    }
}

fn dot(x: &[f32], y: &[f32]) -> f32 {
    x.iter().zip(y).fold(0.0, |sum, (x, y)| sum + x * y)
}

/// o (dv) is the result; m, l (tiles) and a (tiles, dv) are the state after each tile.
///
/// # Safety
/// The pointers are to as many float32 as the shapes say; d, dv and tile are at least 1.
#[no_mangle]
pub unsafe extern "C" fn online_attention(
    q: *const f32, k: *const f32, v: *const f32, s: usize, d: usize, dv: usize, tile: usize,
    o: *mut f32, m: *mut f32, l: *mut f32, a: *mut f32,
) {
    let query = from_raw_parts(q, d);
    let (keys, values) = (from_raw_parts(k, s * d), from_raw_parts(v, s * dv));
    let (o, tiles) = (from_raw_parts_mut(o, dv), (s + tile - 1) / tile);
    let (m, l) = (from_raw_parts_mut(m, tiles), from_raw_parts_mut(l, tiles));
    let a = from_raw_parts_mut(a, tiles * dv);
    let scale = 1.0 / (d as f32).sqrt();

    let mut state = State::nothing_seen(dv);
    let parts = keys.chunks(tile * d).zip(values.chunks(tile * dv));
    for (t, (keys, values)) in parts.enumerate() {
        let scores: Vec<f32> = keys.chunks(d).map(|key| dot(query, key) * scale).collect();
        state.update(&scores, values);

        (m[t], l[t]) = (state.m, state.l);
        a[t * dv..][..dv].copy_from_slice(&state.a);
    }
    o.iter_mut().zip(&state.a).for_each(|(o, a)| *o = a / state.l);
}
