// Line charts of the demo, drawn by Chart.js. Colors come from the style sheet, so a chart follows the theme.
const { Chart } = window;
Chart.defaults.animation = false;
Chart.defaults.font.family = getComputedStyle(document.documentElement).fontFamily;

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

// A chart in `parent`. `lines` are { name, tone, band }: a band fills the space down to the next line.
export class LineChart {
  constructor(parent, title, lines, show) {
    this.lines = lines;
    this.show = show;
    this.title = title;
    const figure = document.createElement("figure");
    figure.className = "chart";
    const caption = document.createElement("figcaption");
    const name = document.createElement("span");
    name.textContent = title;
    this.keys = document.createElement("span");
    this.keys.className = "keys";
    caption.append(name, this.keys);
    const plot = document.createElement("div");
    plot.className = "plot";
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    plot.append(this.canvas);
    figure.append(caption, plot);
    parent.append(figure);
    const axis = { grid: {}, border: { display: false }, ticks: { font: { size: 11 } } };
    this.chart = new Chart(this.canvas, {
      type: "line",
      data: { labels: [], datasets: lines.map((line) => ({
        label: line.name, data: [], borderWidth: line.band ? 0 : 2, pointRadius: 0, pointHitRadius: 6, tension: .25, spanGaps: false,
        fill: line.band ? "+1" : false,
      })) },
      options: {
        responsive: true, maintainAspectRatio: false, interaction: { mode: "index", intersect: false },
        scales: {
          x: { ...axis, grid: { display: false }, ticks: { ...axis.ticks, maxTicksLimit: 5, maxRotation: 0, autoSkipPadding: 24 } },
          y: { ...axis, beginAtZero: true, grace: "5%", ticks: { ...axis.ticks, maxTicksLimit: 5, callback: (value) => show(value) } },
        },
        plugins: { legend: { display: false }, tooltip: { callbacks: { label: (item) => `${item.dataset.label}: ${show(item.parsed.y)}` } } },
      },
    });
    this.recolor();
  }

  recolor() {
    const { options, data } = this.chart;
    for (const scale of Object.values(options.scales)) {
      scale.ticks.color = style("--soft");
      scale.grid.color = style("--line");
    }
    data.datasets.forEach((set, index) => {
      const tone = style(this.lines[index].tone);
      set.borderColor = set.pointBackgroundColor = tone;
      set.backgroundColor = `${tone}2e`;
    });
    this.chart.update("none");
  }

  update(times, values) {
    const { data } = this.chart;
    data.labels = times.map(clock);
    data.datasets.forEach((set, index) => { set.data = values[index]; set.pointRadius = times.length < 3 ? 3 : 0; });
    this.chart.update("none");
    const latest = values.map((one) => one.findLast((value) => value !== null));
    const text = (value) => (value === undefined ? "–" : this.show(value));
    this.keys.replaceChildren(...this.lines.flatMap((line, index) => {
      const key = document.createElement("span");
      key.className = "key";
      key.style.setProperty("--tone", `var(${line.tone})`);
      key.textContent = `${line.name} ${text(latest[index])}`;
      return line.hidden ? [] : [key];
    }));
    const now = this.lines.map((line, index) => `${line.name}: now ${text(latest[index])}`).join("; ");
    this.canvas.setAttribute("aria-label", `${this.title}. ${now}.`);
  }
}
