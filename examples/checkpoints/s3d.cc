// s3d.cc: a proxy of S3D, which simulates combustion: few large arrays, of which one, the mass fractions of the species, has most of the
// bytes, advanced by the stages of a Runge-Kutta scheme with differences of eighth order. proxy.h says what it is told and what it prints.
#include "proxy.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

// Of a row, which is periodic, and the weights of its eighth-order difference.
constexpr std::size_t ROW = 128;
constexpr double WEIGHTS[4] = {4.0 / 5, -1.0 / 5, 4.0 / 105, -1.0 / 280};

// The five stages, in two registers, of Carpenter and Kennedy 1994.
constexpr int STAGES = 5;
constexpr double A[STAGES] = {0, -567301805773.0 / 1357537059087, -2404267990393.0 / 2016746695238, -3550918686646.0 / 2091501179385,
                              -1275806237668.0 / 842570457699};
constexpr double B[STAGES] = {1432997174477.0 / 9575080441755, 5161836677717.0 / 13612068292357, 1720146321549.0 / 2090206949498,
                              3134564353537.0 / 4481467310338, 2277821191437.0 / 14882151754819};

// An array that is kept, and its change, which is not.
struct Array {
    const char *name;
    std::vector<double> values, change;

    Array(const char *name, std::size_t rows, const phx_properties &properties) : name(name), values(rows * ROW), change(rows * ROW)
    {
        proxy_must(phx_register_obj(name, values.data(), values.size() * sizeof(double), sizeof(double), &properties));
        begin();
    }

    void begin()
    {
        for (std::size_t i = 0; i < values.size(); i++) {
            values[i] = static_cast<double>(i % 97) * 0.01;
            change[i] = 0;
        }
    }

    void advance(int stage)
    {
        for (std::size_t row = 0; row < values.size(); row += ROW) {
            double old[ROW + 8];
            for (std::size_t x = 0; x < ROW + 8; x++)
                old[x] = values[row + (x + ROW - 4) % ROW];
            for (std::size_t x = 0; x < ROW; x++) {
                double slope = 0;
                for (std::size_t d = 1; d <= 4; d++)
                    slope += WEIGHTS[d - 1] * (old[x + 4 + d] - old[x + 4 - d]);
                change[row + x] = A[stage] * change[row + x] - 0.1 * slope;
                values[row + x] = old[x + 4] + B[stage] * change[row + x];
            }
        }
    }
};

void cycle(std::vector<Array> &arrays)
{
    for (int stage = 0; stage < STAGES; stage++) {
        proxy_work((stage + 1.0) / STAGES);
        for (Array &array : arrays)
            array.advance(stage);
    }
}

} // namespace

int main()
{
    proxy_begin("s3d");
    const phx_properties properties = proxy_properties();
    const auto species = static_cast<std::size_t>(proxy_parameter("species"));
    const std::size_t rows = proxy_bytes() / sizeof(double) / ROW / (species + 5) + 1;
    std::vector<Array> arrays;
    arrays.reserve(4); // what is registered stays where it is
    arrays.emplace_back("yspecies", rows * species, properties);
    arrays.emplace_back("u", rows * 3, properties);
    arrays.emplace_back("pressure", rows, properties);
    arrays.emplace_back("temp", rows, properties);
    int done = 0;
    proxy_must(phx_register_obj("cycle", &done, sizeof done, sizeof done, nullptr));

    if (proxy_calibrates()) {
        cycle(arrays);
        proxy_calibrated();
        for (Array &array : arrays)
            array.begin();
    }
    const int code = phx_restart(nullptr, nullptr);
    if (code != PHX_ENOTFOUND)
        proxy_must(code);
    const int restored = done;
    while (done < proxy_cycles()) {
        cycle(arrays);
        done++;
        proxy_computed();
        if (proxy_keeps())
            proxy_must(phx_checkpoint_commit(nullptr));
        proxy_committed(done);
    }
    std::uint64_t sum = 0;
    for (const Array &array : arrays)
        sum = proxy_checksum(sum, array.values.data(), array.values.size() * sizeof(double));
    proxy_end(restored, sum);
    return 0;
}
