/** The parts of Preact that the viewer uses. */
export type VNode = unknown;
export class Component {
  constructor(props?: any);
  props: any;
  state: any;
  setState(changes: Record<string, any>, done?: () => void): void;
  render(): VNode;
}
export function h(type: any, props: Record<string, any> | null, ...children: any[]): VNode;
export function render(node: VNode, parent: Element): void;
export function createRef(): { current: any };
